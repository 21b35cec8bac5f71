# The server alone: no torch. The database lives on a volume at /data.
FROM python:3.13-slim AS build
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /wheels

FROM python:3.13-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(ls /wheels/*.whl)[server,postgres]" && rm -r /wheels \
    && useradd --system --create-home scalescope && install -d -o scalescope /data
USER scalescope
VOLUME /data
EXPOSE 8765
HEALTHCHECK --interval=10s --timeout=3s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8765/readyz', timeout=2)"]
ENTRYPOINT ["scalescope"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8765", "--database", "/data/scalescope.db"]
