# The broker's image: dependencies and package in one virtual environment, run by nobody's user.
FROM python:3.11-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/codeq-cluster \
 && /opt/codeq-cluster/bin/pip install --quiet setuptools==80.9.0
WORKDIR /src
# Dependencies before code: a change of code alone does not install them again.
COPY pyproject.toml ./
RUN python3 -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['server'], sep='\n')" \
      > /tmp/pins.txt \
 && /opt/codeq-cluster/bin/pip install --quiet --use-pep517 --no-build-isolation -r /tmp/pins.txt
COPY codeq_cluster ./codeq_cluster
RUN /opt/codeq-cluster/bin/pip install --quiet --no-deps --no-build-isolation . \
 && /opt/codeq-cluster/bin/pip uninstall --quiet --yes setuptools pip

FROM python:3.11-slim-bookworm
# The last two are where the compose files of codeQ mount volumes, as PERSISTENCE_CONFIG is what
# they set: a variable of its own for the path would beat it.
RUN groupadd --system --gid 10001 codeq \
 && useradd --system --uid 10001 --gid codeq --home-dir /data --no-create-home --shell /usr/sbin/nologin codeq \
 && install -d -o codeq -g codeq -m 0700 /data /backup /artifacts \
      /var/lib/codeq/pebble /var/lib/codeq/artifacts
COPY --from=build /opt/codeq-cluster /opt/codeq-cluster
ENV PATH=/opt/codeq-cluster/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PORT=8080 \
    CODEQ_HOST=0.0.0.0 \
    RAFT_BIND_ADDR=0.0.0.0:18080 \
    PERSISTENCE_CONFIG='{"path":"/data"}'
USER 10001:10001
VOLUME /data
EXPOSE 8080 18080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=4s --start-period=20s --retries=3 \
  CMD ["python3", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['PORT'] + '/healthz', timeout=3)"]
ENTRYPOINT ["codeq-cluster"]
CMD ["node"]
