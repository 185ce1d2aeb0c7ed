"""Linear algebra: matrix products, Einsum, determinants."""
