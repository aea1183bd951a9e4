# The server, for the CPU: `docker build -t regard .`, and compose.yaml says how to run it.
FROM python:3.12-slim-bookworm AS build
# A compiler stays behind in this stage: where the wheel brings the engine along, it is compiled here.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim-bookworm
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/
# An index with PyTorch's builds for the CPU spares the image the gigabytes that a GPU needs:
# docker build --build-arg PIP_EXTRA_INDEX_URL=... (PyTorch's page "Get started" names it).
ARG PIP_EXTRA_INDEX_URL
RUN pip install --no-cache-dir --constraint /wheels/constraints.txt \
        "regard[detect,forms] @ file://$(echo /wheels/regard-*.whl)" \
    && useradd --uid 10001 --create-home regard \
    && mkdir /models
USER 10001
ENV REGARD_CACHE=/tmp/regard
VOLUME /models
EXPOSE 8000
# It begins when the server does: the model is loaded by the first request that asks for it.
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=4)"]
# All addresses of the container, which asks for a key in REGARD_API_KEYS; what others can reach is what is published.
ENTRYPOINT ["regard"]
CMD ["serve", "--host", "0.0.0.0"]
