/* Two ends of the connection manager that say something to one another, and print what they hear.
 *
 *   greet [-u] [-r] [-d SECONDS] -s ADDRESS     takes one request, after a while; -r: turns it down
 *   greet [-u] -c ADDRESS                       asks, and ends what comes of it
 *
 * -u: queue pairs of datagrams. The last line is "end". */
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int datagrams, rejects, delay;
static struct rdma_event_channel *channel;

static void need(int good, const char *what) {
    if (!good) {
        perror(what);
        exit(1);
    }
}

/* The next event, printed. */
static struct rdma_cm_event *next(void) {
    struct rdma_cm_event *event;
    need(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
    const char *said = datagrams ? event->param.ud.private_data : event->param.conn.private_data;
    int len = datagrams ? event->param.ud.private_data_len : event->param.conn.private_data_len;
    printf("%s %d %.*s\n", rdma_event_str(event->event), event->status, said ? len : 0, said ? said : "");
    fflush(stdout);
    return event;
}

static void expect(enum rdma_cm_event_type type) {
    struct rdma_cm_event *event = next();
    need(event->event == type, "another event");
    rdma_ack_cm_event(event);
}

static void queue_pair(struct rdma_cm_id *id) {
    struct ibv_qp_init_attr attr = {
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = datagrams ? IBV_QPT_UD : IBV_QPT_RC,
    };
    need(!rdma_create_qp(id, NULL, &attr), "rdma_create_qp");
}

static struct rdma_conn_param with(struct rdma_cm_id *id, const char *said) {
    return (struct rdma_conn_param){
        .private_data = said,
        .private_data_len = strlen(said) + 1,
        .responder_resources = 1,
        .initiator_depth = 1,
        .retry_count = 7,
        .rnr_retry_count = 7,
        .qp_num = id->qp ? id->qp->qp_num : 0,
    };
}

static void serve(struct rdma_cm_id *listener, struct sockaddr *address) {
    need(!rdma_bind_addr(listener, address), "rdma_bind_addr");
    need(!rdma_listen(listener, 1), "rdma_listen");
    struct rdma_cm_event *event = next();
    need(event->event == RDMA_CM_EVENT_CONNECT_REQUEST, "another event");
    struct rdma_cm_id *id = event->id;
    rdma_ack_cm_event(event);
    sleep(delay);
    if (rejects) {
        need(!rdma_reject(id, "no, thank you", 14), "rdma_reject");
    } else {
        queue_pair(id);
        struct rdma_conn_param param = with(id, "gladly");
        need(!rdma_accept(id, &param), "rdma_accept");
        if (!datagrams) {
            expect(RDMA_CM_EVENT_ESTABLISHED);
            expect(RDMA_CM_EVENT_DISCONNECTED);
            rdma_disconnect(id);
        }
        rdma_destroy_qp(id);
    }
    need(!rdma_destroy_id(id), "rdma_destroy_id");
}

static void ask(struct rdma_cm_id *id, struct sockaddr *address) {
    need(!rdma_resolve_addr(id, NULL, address, 2000), "rdma_resolve_addr");
    expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    need(!rdma_resolve_route(id, 2000), "rdma_resolve_route");
    expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    queue_pair(id);
    struct rdma_conn_param param = with(id, "may I?");
    need(!rdma_connect(id, &param), "rdma_connect");
    struct rdma_cm_event *event = next();
    int established = event->event == RDMA_CM_EVENT_ESTABLISHED;
    rdma_ack_cm_event(event);
    if (established && !datagrams) {
        need(!rdma_disconnect(id), "rdma_disconnect");
        expect(RDMA_CM_EVENT_DISCONNECTED);
    }
    rdma_destroy_qp(id);
}

int main(int argc, char **argv) {
    void (*end)(struct rdma_cm_id *, struct sockaddr *) = ask;
    const char *address = NULL;
    for (int option; (option = getopt(argc, argv, "urd:s:c:")) != -1;) {
        switch (option) {
        case 'u': datagrams = 1; break;
        case 'r': rejects = 1; break;
        case 'd': delay = atoi(optarg); break;
        case 's': end = serve; address = optarg; break;
        case 'c': address = optarg; break;
        default: return 2;
        }
    }
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV}, *found;
    need(address && !getaddrinfo(address, "7471", &hints, &found), "address");
    struct rdma_cm_id *id;
    need((channel = rdma_create_event_channel()) != NULL, "rdma_create_event_channel");
    need(!rdma_create_id(channel, &id, NULL, datagrams ? RDMA_PS_UDP : RDMA_PS_TCP), "rdma_create_id");
    end(id, found->ai_addr);
    need(!rdma_destroy_id(id), "rdma_destroy_id");
    rdma_destroy_event_channel(channel);
    puts("end");
    return 0;
}
