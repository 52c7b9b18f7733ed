# A server of predictions with certified radii, on a CPU.
#   docker build -t skewconv .
#   docker run -p 8000:8000 skewconv                                   the network of the package
#   docker run -p 8000:8000 -v /path/to/RUN:/model:ro skewconv /model  your own
FROM python:3.11-slim
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY skewconv skewconv
RUN pip install --no-cache-dir -c constraints.txt ".[train,serve]" && useradd --create-home app
USER app
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["skewconv", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["cifar10"]
