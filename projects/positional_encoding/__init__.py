"""The CPVT paper's claims about position encodings, tested on Imagenette, CamVid, and BCCD."""
