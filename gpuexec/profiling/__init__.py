"""What runs took, layer by layer, and what the package did around them: gathered, added up, shown, written down."""
