"""Libraries of a GPU that plans may call: cuBLASLt and cuDNN, by optional packages."""
