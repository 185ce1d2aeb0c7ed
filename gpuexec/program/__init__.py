"""Programs: files of compiled methods, and Methods that run in memory of the user."""
