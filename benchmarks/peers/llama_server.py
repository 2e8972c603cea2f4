"""llama.cpp's own server from the package xllamacpp: MODEL, PORT and SEATS come as arguments; one thread.

Run by `language_peers_bench`, in an interpreter that has the package.
"""

import sys
import threading

import xllamacpp

model, port, seats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
params = xllamacpp.CommonParams()
params.model.path = model
params.model_alias = {"smollm2"}
params.port = port
params.n_parallel, params.n_ctx = seats, 512 * seats
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.warmup = True
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
threading.Event().wait()
