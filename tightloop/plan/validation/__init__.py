"""What is wrong with a plan, each problem with its place and a suggestion."""
