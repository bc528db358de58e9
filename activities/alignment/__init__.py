"""What rules alone cannot tell of the alignment of a plan or a change."""
