"""Parts that several families of operators share: checks, launches, windows."""
