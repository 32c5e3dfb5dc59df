"""Rules for data as read; :func:`.checks.check` applies them."""
