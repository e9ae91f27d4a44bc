"""Views: queries kept up to date, each a ledger of its own."""
