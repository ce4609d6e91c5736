"""What an expression is: a tensor, an array, a device, a layer, a loader, a data set, an optimizer."""
