"""An experiment: which position encoding keeps its accuracy at other image sizes."""
