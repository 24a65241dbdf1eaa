# The service, with its kernels compiled: docker build -t tagmatch .
FROM python:3.12.12-slim-bookworm AS built
WORKDIR /src
COPY . .
RUN python -m venv /opt/tagmatch
RUN /opt/tagmatch/bin/pip install --no-cache-dir '.[serve,trace,mqtt,nats,kafka]'

FROM python:3.12.12-slim-bookworm
COPY --from=built /opt/tagmatch /opt/tagmatch
ENV PATH=/opt/tagmatch/bin:$PATH XDG_CACHE_HOME=/opt/cache
RUN tagmatch warmup --export "$XDG_CACHE_HOME" || tagmatch warmup
RUN useradd --system --uid 10001 --create-home tagmatch
RUN install -d -o tagmatch -g tagmatch /var/lib/tagmatch /etc/tagmatch
USER tagmatch
VOLUME /var/lib/tagmatch
EXPOSE 8815 8816 9815
HEALTHCHECK --interval=10s --timeout=5s --start-period=5m CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9815/livez', timeout=3)"]
STOPSIGNAL SIGTERM
CMD ["tagmatch", "serve", "--config", "/etc/tagmatch/service.toml"]
