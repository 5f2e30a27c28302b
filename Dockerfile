# A server with OpenAI's interface: docker build -t foretoken . && docker run -p 8000:8000 foretoken
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends build-essential && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN python -m venv /opt/foretoken \
 && /opt/foretoken/bin/pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
    "torch>=2.8,<2.14" ".[serve,grammar,remote]"

FROM python:3.12-slim
COPY --from=build /opt/foretoken /opt/foretoken
ENV PATH=/opt/foretoken/bin:$PATH
# models from the hub are kept in this folder; a volume that lies there keeps them for the next container
RUN useradd --create-home foretoken \
 && install -d -o foretoken -g foretoken /home/foretoken/.cache /home/foretoken/.cache/huggingface
USER foretoken
EXPOSE 8000
# Docker stops a container with SIGTERM, at which the server finishes what is under way
STOPSIGNAL SIGTERM
ENTRYPOINT ["foretoken"]
CMD ["serve", "--host", "0.0.0.0"]
