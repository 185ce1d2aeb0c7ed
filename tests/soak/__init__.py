"""Long runs outside the tests: `make soak` looks for what grows, hangs or goes wrong only after long."""
