/* A CUDA driver that computes on the processor: what tests of optcli.models.engines need of libcuda.so.1.
 *
 * Memory on the device is the process's own. A stream does its work at once, unless it is being
 * captured: then work is kept for the graph. Time on the device is a counter in milliseconds that only
 * computing moves, so that tests know what events must say. FAKE_CUDA_INIT, FAKE_CUDA_DEVICES and
 * FAKE_CUDA_FAIL (a function's name) in the environment make it fail.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*work_t)(void *);
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, UNSUPPORTED = 900, INVALIDATED = 901 };

typedef struct { work_t work; void *about; double ms; } item_t;
typedef struct { item_t items[64]; int count; } graph_t;
typedef struct { int capturing, invalid; graph_t *graph; } stream_t;
typedef struct { double at_ms; } event_t;

static double now_ms = 0.0;
static long allocated = 0, launches = 0, captures = 0;

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static int fails(const char *function) {
    const char *name = getenv("FAKE_CUDA_FAIL");
    return name && !strcmp(name, function) ? 1 : 0;
}

#define CHECKED(function) if (fails(#function)) return 999

int cuInit(unsigned flags) { return number("FAKE_CUDA_INIT", SUCCESS); }
int cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
int cuDeviceGetCount(int *count) { *count = number("FAKE_CUDA_DEVICES", 1); return SUCCESS; }
int cuDeviceGet(int *device, int index) { *device = index; return SUCCESS; }
int cuDeviceGetName(char *name, int length, int device) { snprintf(name, length, "Fake GPU %d", device); return SUCCESS; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)80 << 30; return SUCCESS; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 75 ? 9 : 0; return SUCCESS; }
int cuDevicePrimaryCtxRetain(void **context, int device) { CHECKED(cuDevicePrimaryCtxRetain); *context = (void *)1; return SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int device) { return SUCCESS; }
int cuCtxSetCurrent(void *context) { return context ? SUCCESS : INVALID_VALUE; }

int cuMemAlloc_v2(void **address, size_t bytes) {
    CHECKED(cuMemAlloc_v2);
    if (bytes == 0) return INVALID_VALUE;
    if (bytes > ((size_t)80 << 30)) return OUT_OF_MEMORY;
    *address = calloc(1, bytes); allocated++; return SUCCESS;
}
int cuMemFree_v2(void *address) { free(address); allocated--; return SUCCESS; }
int cuMemHostAlloc(void **address, size_t bytes, unsigned flags) { *address = calloc(1, bytes); allocated++; return SUCCESS; }
int cuMemFreeHost(void *address) { free(address); allocated--; return SUCCESS; }
int cuMemcpyHtoDAsync_v2(void *to, void *from, size_t bytes, stream_t *stream) { now_ms += 100.0; memcpy(to, from, bytes); return SUCCESS; }
int cuMemcpyDtoHAsync_v2(void *to, void *from, size_t bytes, stream_t *stream) { now_ms += 100.0; memcpy(to, from, bytes); return SUCCESS; }

int cuStreamCreate(stream_t **stream, unsigned flags) { if (flags != 1) return INVALID_VALUE; *stream = calloc(1, sizeof **stream); allocated++; return SUCCESS; }
int cuStreamDestroy_v2(stream_t *stream) { free(stream); allocated--; return SUCCESS; }
int cuStreamSynchronize(stream_t *stream) {
    CHECKED(cuStreamSynchronize);
    if (!stream->capturing) return SUCCESS;
    stream->invalid = 1;
    return UNSUPPORTED;
}
int cuEventCreate(event_t **event, unsigned flags) { *event = calloc(1, sizeof **event); allocated++; return SUCCESS; }
int cuEventDestroy_v2(event_t *event) { free(event); allocated--; return SUCCESS; }
static void note(void *event) { ((event_t *)event)->at_ms = now_ms; }
static int keep(stream_t *stream, item_t item) { stream->graph->items[stream->graph->count++] = item; return SUCCESS; }
int cuEventRecordWithFlags(event_t *event, stream_t *stream, unsigned flags) {
    if (flags == 1) CHECKED(cuEventRecordWithFlags); /* as a driver that knows no such events */
    if (stream->capturing && flags != 1) { stream->invalid = 1; return UNSUPPORTED; }
    if (stream->capturing) return keep(stream, (item_t){note, event, 0.0});
    note(event);
    return SUCCESS;
}
int cuEventElapsedTime(float *ms, event_t *from, event_t *to) { *ms = (float)(to->at_ms - from->at_ms); return SUCCESS; }

int cuStreamBeginCapture_v2(stream_t *stream, int mode) {
    CHECKED(cuStreamBeginCapture_v2);
    stream->capturing = 1; stream->invalid = 0; stream->graph = calloc(1, sizeof(graph_t)); allocated++; captures++;
    return SUCCESS;
}
int cuStreamEndCapture(stream_t *stream, graph_t **graph) {
    if (!stream->capturing) return INVALID_VALUE;
    stream->capturing = 0;
    if (stream->invalid) { free(stream->graph); allocated--; *graph = NULL; return INVALIDATED; }
    *graph = stream->graph;
    return SUCCESS;
}
int cuGraphInstantiateWithFlags(graph_t **made, graph_t *graph, unsigned long long flags) {
    *made = malloc(sizeof **made); **made = *graph; allocated++; return SUCCESS;
}
int cuGraphDestroy(graph_t *graph) { free(graph); allocated--; return SUCCESS; }
int cuGraphExecDestroy(graph_t *graph) { free(graph); allocated--; return SUCCESS; }

static void compute(item_t *item) { item->work(item->about); now_ms += item->ms; }

int cuGraphLaunch(graph_t *graph, stream_t *stream) {
    launches++;
    now_ms += 25.0; /* a processor that is late */
    for (int index = 0; index < graph->count; index++) compute(&graph->items[index]);
    return SUCCESS;
}

/* What a kernel launch would be: computed at once, or kept for the graph. */
int fake_enqueue(stream_t *stream, work_t work, void *about, double ms) {
    item_t item = {work, about, ms};
    if (!stream) return INVALID_VALUE;
    if (stream->capturing) return keep(stream, item);
    compute(&item);
    return SUCCESS;
}
long fake_allocated(void) { return allocated; }
long fake_launches(void) { return launches; }
long fake_captures(void) { return captures; }

int cuGetErrorName(int error, const char **name) {
    switch (error) {
    case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; return SUCCESS;
    case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return SUCCESS;
    case NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; return SUCCESS;
    case 803: *name = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"; return SUCCESS;
    case UNSUPPORTED: *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"; return SUCCESS;
    case INVALIDATED: *name = "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"; return SUCCESS;
    case 999: *name = "CUDA_ERROR_UNKNOWN"; return SUCCESS;
    }
    *name = NULL;
    return INVALID_VALUE;
}
int cuGetErrorString(int error, const char **text) {
    if (error == OUT_OF_MEMORY) { *text = "out of memory"; return SUCCESS; }
    if (error == 999) { *text = "unknown error"; return SUCCESS; }
    *text = NULL;
    return INVALID_VALUE;
}
