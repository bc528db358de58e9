"""The working tree: snapshots, restore, adoption, ownership."""
