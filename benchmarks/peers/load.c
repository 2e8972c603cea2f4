/* An HTTP/1.1 load client: one thread, keep-alive connections, one request in flight on each.
 *
 * load HOST PORT CLIENTS SECONDS WARM_SECONDS REQUEST_FILE [RATE_PER_S]
 *
 * Sends the bytes of REQUEST_FILE as they are and reads replies framed by Content-Length. Without a rate each connection
 * asks again as soon as it was answered. With one, requests are due at even gaps, to a millisecond, whether or not
 * earlier ones were answered: a request that finds no free connection waits for one, and its time runs from when it was
 * due. Prints one JSON document: replies of status 200, others, seconds, and times in microseconds. Loopback only: it
 * is a benchmark's client.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEAD_MAX = 16384, TIMES_MAX = 4000000 };

struct connection {
    int fd;
    size_t sent;
    char head[HEAD_MAX];
    size_t head_bytes;
    long left; /* bytes of body to come; -1: the head is not whole */
    int ok;
    uint64_t began_ns;
};

static char *request;
static size_t request_bytes;
static uint64_t *times_ns;
static size_t taken;
static long good, bad;
static char sink[1 << 18];

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static int push(struct connection *c) {
    while (c->sent < request_bytes) {
        ssize_t n = send(c->fd, request + c->sent, request_bytes - c->sent, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EAGAIN) return 1;
            die("send");
        }
        c->sent += (size_t)n;
    }
    return 0;
}

/* Send one request; its time runs from began_ns. */
static void begin(int poll, struct connection *c, uint64_t began_ns) {
    c->sent = 0;
    c->head_bytes = 0;
    c->left = -1;
    c->began_ns = began_ns;
    if (push(c)) {
        struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
        epoll_ctl(poll, EPOLL_CTL_MOD, c->fd, &e);
    }
}

/* 1: a whole reply is there. */
static int pull(struct connection *c) {
    for (;;) {
        if (c->left < 0) {
            ssize_t n = recv(c->fd, c->head + c->head_bytes, HEAD_MAX - 1 - c->head_bytes, 0);
            if (n < 0 && errno == EAGAIN) return 0;
            if (n <= 0) { fprintf(stderr, "the server closed a connection\n"); exit(1); }
            c->head_bytes += (size_t)n;
            c->head[c->head_bytes] = 0;
            char *end = strstr(c->head, "\r\n\r\n");
            if (end == NULL) continue;
            char *length = strcasestr(c->head, "\r\ncontent-length:");
            if (length == NULL || length > end) { fprintf(stderr, "a reply without Content-Length\n"); exit(1); }
            long body = atol(length + 17);
            c->ok = c->head_bytes > 12 && memcmp(c->head + 9, "200", 3) == 0;
            c->left = body - (long)(c->head_bytes - (size_t)(end + 4 - c->head));
        }
        if (c->left == 0) return 1;
        ssize_t n = recv(c->fd, sink, (size_t)c->left < sizeof sink ? (size_t)c->left : sizeof sink, 0);
        if (n < 0 && errno == EAGAIN) return 0;
        if (n <= 0) { fprintf(stderr, "the server closed a connection\n"); exit(1); }
        c->left -= n;
    }
}

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    if (argc != 7 && argc != 8) {
        fprintf(stderr, "load HOST PORT CLIENTS SECONDS WARM_SECONDS REQUEST_FILE [RATE_PER_S]\n");
        return 2;
    }
    size_t clients = (size_t)atoi(argv[3]);
    double seconds = atof(argv[4]), warm = atof(argv[5]), rate = argc == 8 ? atof(argv[7]) : 0;
    FILE *file = fopen(argv[6], "rb");
    if (file == NULL) die(argv[6]);
    fseek(file, 0, SEEK_END);
    request_bytes = (size_t)ftell(file);
    rewind(file);
    request = malloc(request_bytes);
    if (fread(request, 1, request_bytes, file) != request_bytes) die("read");
    fclose(file);
    times_ns = malloc(sizeof *times_ns * TIMES_MAX);
    struct connection *all = calloc(clients, sizeof *all);
    struct connection **free_ones = calloc(clients, sizeof *free_ones); /* a ring: none stays idle for long */
    size_t freed = 0, used_up = 0;                                      /* ever put in, ever taken out */
    int poll = epoll_create1(0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
    if (inet_pton(AF_INET, argv[1], &to.sin_addr) != 1) die("HOST");
    for (size_t i = 0; i < clients; i++) {
        struct connection *c = &all[i];
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        int one = 1;
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (connect(c->fd, (struct sockaddr *)&to, sizeof to) != 0) die("connect");
        if (ioctl(c->fd, FIONBIO, &one) != 0) die("nonblock");
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poll, EPOLL_CTL_ADD, c->fd, &e);
        c->left = -1;
        if (rate > 0) free_ones[freed++ % clients] = c;
        else begin(poll, c, now_ns());
    }
    uint64_t start = now_ns(), counted = start + (uint64_t)(warm * 1e9), stop = counted + (uint64_t)(seconds * 1e9), now = start;
    uint64_t gap_ns = rate > 0 ? (uint64_t)(1e9 / rate) : 0, due_ns = start;
    struct epoll_event events[256];
    while (now < stop) {
        for (; rate > 0 && due_ns <= now && used_up < freed; due_ns += gap_ns) begin(poll, free_ones[used_up++ % clients], due_ns);
        int wait_ms = rate > 0 && used_up < freed ? (int)((due_ns - now) / 1000000) + 1 : 1000;
        int n = epoll_wait(poll, events, 256, wait_ms);
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT && !push(c)) {
                struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
                epoll_ctl(poll, EPOLL_CTL_MOD, c->fd, &e);
            }
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) && pull(c)) {
                uint64_t ended = now_ns();
                if (ended >= counted && ended < stop) {
                    if (c->ok) good++; else bad++;
                    if (taken < TIMES_MAX) times_ns[taken++] = ended - c->began_ns;
                }
                if (rate > 0) {
                    c->head_bytes = 0;
                    c->left = -1; /* what comes now is the end of the connection */
                    free_ones[freed++ % clients] = c;
                } else {
                    begin(poll, c, now_ns());
                }
            }
        }
        now = now_ns();
    }
    qsort(times_ns, taken, sizeof *times_ns, by_size);
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu_s = used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    printf("{\"completed\": %ld, \"others\": %ld, \"seconds\": %.3f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"client_cpu_s\": %.3f}\n",
           good, bad, seconds, taken ? times_ns[taken / 2] / 1e3 : -1, taken ? times_ns[taken * 99 / 100] / 1e3 : -1, cpu_s);
    return 0;
}
