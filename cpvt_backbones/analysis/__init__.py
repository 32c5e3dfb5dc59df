"""Measurements on trained models: cost, image sizes, shifts, attention, features."""
