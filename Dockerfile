# The application's image: one for every process of docker-compose.yml.
FROM python:3.11.14-slim-bookworm

ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /app

# The pins change more rarely than the code.
COPY requirements/run.txt requirements/run.txt
RUN pip install --require-hashes -r requirements/run.txt

COPY . .
RUN pip install --no-deps ./beat . \
    && useradd --system --uid 10001 fencebeat \
    && install -d -o fencebeat /state

USER fencebeat
WORKDIR /state
VOLUME /state
CMD ["fencebeat", "--help"]
