"""What an installation consists of besides episodes: its workers, its namespace, its search attributes."""
