"""Files of a working tree, as the tools find, read and write them."""
