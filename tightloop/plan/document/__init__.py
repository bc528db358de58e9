"""What a person writes: a plan, its steps, their actions, and the policy that binds them."""
