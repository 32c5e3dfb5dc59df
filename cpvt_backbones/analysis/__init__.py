"""Measurements of trained models: cost, image sizes, worst images."""
