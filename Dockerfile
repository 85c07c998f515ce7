# One image for every service of a run: `docker compose build`. Nothing in it can compile, and nobody in it is root.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
RUN python3 -m venv /opt/build && python3 -m venv --without-pip /opt/gyre
# What gyre needs, by itself: a change in gyre installs nothing of it again.
COPY pyproject.toml constraints.txt ./
ARG PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_CONSTRAINT=/src/constraints.txt
RUN python3 -c 'import itertools, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
extra = project["optional-dependencies"]; \
print(*project["dependencies"], *itertools.chain(*(extra[name] for name in ("torch", "analytics"))), sep="\n")' \
    > requirements.txt \
 && /opt/build/bin/pip --python /opt/gyre/bin/python install ${PIP_ARGS} -r requirements.txt \
 && /opt/build/bin/pip install ${PIP_ARGS} hatchling \
 && rm -rf /opt/gyre/lib/python3*/site-packages/torch/include /opt/gyre/lib/python3*/site-packages/torch/test \
 && find /opt/gyre -name '*.a' -delete
COPY . .
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/build/bin/pip --python /opt/gyre/bin/python install --no-deps /wheels/*.whl

FROM ${BASE}
RUN useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin gyre \
 && install -d -o gyre -g gyre -m 0750 /runs /keys /volumes /volumes/runs /volumes/nats /volumes/keys
COPY --from=build /opt/gyre /opt/gyre
COPY deploy/compose/start deploy/compose/healthy /usr/local/bin/
COPY examples /gyre/examples
ENV PATH=/opt/gyre/bin:$PATH HOME=/tmp LANG=C.UTF-8 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
WORKDIR /gyre
USER gyre
ENTRYPOINT ["start"]
CMD ["--help"]
