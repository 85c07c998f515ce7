"""What people are shown: drawings for terminals, and what is gathered for them."""
