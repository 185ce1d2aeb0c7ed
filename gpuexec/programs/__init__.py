"""For people who own their memory: program files, methods, and what they run in."""
