"""The working tree, with snapshots, restoration, adoption and ownership."""
