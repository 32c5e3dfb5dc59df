"""The page behind demo/app.py: a server of plain HTTP, and what it asks of the package."""
