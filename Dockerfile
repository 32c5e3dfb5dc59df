# The package on a CPU, without a compiler; running it trains the demo:
#   docker build -t cpvt_backbones . && docker run --rm -v "$PWD/work_dirs:/app/work_dirs" cpvt_backbones
# On a GPU the same image: docker run --rm --gpus all ... (torch brings CUDA, the host the driver).
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
# For --user with an id that has no name and no home: torch asks for the one, numba for the other.
ENV HOME=/tmp USER=cpvt NUMBA_CACHE_DIR=/tmp/numba
WORKDIR /app
COPY . .
RUN make setup && .venv/bin/uv cache clean
CMD ["make", "demo"]
