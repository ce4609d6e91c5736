"""How samples reach the device."""
