"""Other people's interfaces over ours."""
