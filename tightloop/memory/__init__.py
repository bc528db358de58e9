"""What is remembered of failures and of what solved them: values, and the rules about them."""
