"""Keeps the hashed locks in step with the `.in` files they are made from."""
