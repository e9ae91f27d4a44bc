"""What amounts come to; a module beside the pipeline, as users have them."""

TAX = 20  # percent


def tax_of(cents: int) -> int:
    """In whole cents, rounded down."""
    return cents * TAX // 100
