# gpuload in a container. Build it in the top folder of the clone:
#   docker build --target cpu -t gpuload:cpu .
#   docker build --target cuda -t gpuload:cuda .        (run it with --gpus all)
#   docker run --rm -v "$PWD:/data" gpuload:cpu pack /data/photos /data/shards
FROM python:3.13-slim-bookworm AS base
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /opt/gpuload
COPY pyproject.toml README.md LICENSE ./
COPY tools/hatch_build.py tools/build_kernels.py tools/constraints.txt tools/
COPY gpuload gpuload
RUN useradd --uid 1000 --create-home user

FROM base AS cpu
RUN pip install --constraint tools/constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu '.[cpu,sources,remote,report]'
USER 1000
WORKDIR /data
ENTRYPOINT ["python", "-m", "gpuload"]

# CUDA's libraries come with torch's and DALI's wheels; the driver is the host's, by the NVIDIA Container Toolkit.
FROM base AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility,video
RUN pip install --constraint tools/constraints.txt '.[cuda13,sources,remote,report]'
USER 1000
WORKDIR /data
ENTRYPOINT ["python", "-m", "gpuload"]
