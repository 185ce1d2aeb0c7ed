"""Memory that is textures: how large, where in them, at which addresses; what runs on a GPU and on the simulator."""
