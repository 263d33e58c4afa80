"""What each op of a step must move and compute, what our programs move, and what devices allow."""
