"""What runs beside checkers and tells what they do. It works in the Python of the project, whichever that is."""
