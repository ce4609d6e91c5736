"""Images in class folders or shards: decoded, cropped, batched. The kernel that resizes is in `hasten.kernels`."""
