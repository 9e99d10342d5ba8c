/* The driver `net_viaduct`: a DPDK port for each port of viaductd with mode `ovs`. */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_dev.h>
#include <rte_devargs.h>
#include <rte_ether.h>
#include <rte_kvargs.h>

#include "viaduct.h"

#define DRIVER "net_viaduct"
#define DEFAULT_RUN_DIR "/run/viaduct"
/* The largest MTU that Open vSwitch takes. */
#define MAX_MTU 9710
#define ARG_PORT "port"
#define ARG_SOCKET "socket"
#define ARG_RUN_DIR "run-dir"

int viaduct_log;
static uint16_t switch_domain = RTE_ETH_DEV_SWITCH_DOMAIN_ID_INVALID;
static void *device_ops(void);

static struct port *of(struct rte_eth_dev *dev)
{
	return DATA(dev, dev_private, struct port *);
}

/* Returns the port that has this number in DPDK; NULL if there is none, or a different driver has it. */
struct port *port_of(uint16_t dpdk_id)
{
	struct rte_eth_dev *dev = (void *)(rte_eth_devices + (size_t)dpdk_id * VIADUCT_SIZE_rte_eth_dev);

	if (dpdk_id >= RTE_MAX_ETHPORTS || !rte_eth_dev_is_valid_port(dpdk_id))
		return NULL;
	return DEV(dev, dev_ops, void *) == device_ops() ? of(dev) : NULL;
}

/* Adds to the port's sum what the page has counted since the last look; viaductd writes the page meanwhile. Without
 * `goes_on`, the page belongs to a new session: it says where counting begins, and nothing is added. The caller holds
 * the session's view. */
void port_count(struct port *port, const struct viaduct_page *page, bool goes_on)
{
	struct viaduct_page before = port->sum;

	for (size_t i = offsetof(struct viaduct_page, rx_packets) / 8; i < sizeof(*page) / 8; i++)
		count_on((uint64_t *)&port->sum + i, (uint64_t *)&port->seen + i, (const uint64_t *)page + i);
	if (!goes_on)
		port->sum = before;
}

/* Returns what the port counted since it was made or reset. */
static struct viaduct_page counts(struct port *port)
{
	struct viaduct_page sum;
	struct rings *rings;

	pthread_mutex_lock(&port->session->view);
	rings = atomic_load(&port->rings);
	if (rings != NULL)
		port_count(port, rings->page, true);
	sum = port->sum;
	pthread_mutex_unlock(&port->session->view);
	return sum;
}

static int nothing(struct rte_eth_dev *dev)
{
	(void)dev;
	return 0;
}

static int link_update(struct rte_eth_dev *dev, int wait)
{
	struct port *port = of(dev);
	struct rte_eth_link link = {.link_speed = RTE_ETH_SPEED_NUM_100G,
				    .link_duplex = RTE_ETH_LINK_FULL_DUPLEX,
				    .link_autoneg = RTE_ETH_LINK_FIXED};
	struct rings *rings;
	uint64_t before, after;

	(void)wait;
	static_assert(sizeof(link) == sizeof(after), "the link is a word");
	pthread_mutex_lock(&port->session->view);
	rings = atomic_load(&port->rings);
	if (rings != NULL && !port->down && __atomic_load_n(&rings->page->link, __ATOMIC_RELAXED) == 1)
		link.link_status = RTE_ETH_LINK_UP;
	pthread_mutex_unlock(&port->session->view);
	memcpy(&after, &link, sizeof(after));
	before = __atomic_exchange_n(&DATA(dev, dev_link, uint64_t), after, __ATOMIC_SEQ_CST);
	return before == after ? -1 : 0;
}

/* Returns the port's name in DPDK. */
const char *port_device(const struct port *port)
{
	const struct rte_device *device = DEV(port->dev, device, const struct rte_device *);

	return device == NULL ? "" : rte_dev_name(device);
}

/* Tells those who asked for it that the link has changed. The caller holds the session's lock. */
void port_tell_link(struct port *port)
{
	if (link_update(port->dev, 0) == 0)
		rte_eth_dev_callback_process(port->dev, RTE_ETH_EVENT_INTR_LSC, NULL);
}

static int dev_start(struct rte_eth_dev *dev)
{
	link_update(dev, 0);
	return 0;
}

static int mac_addr_set(struct rte_eth_dev *dev, struct rte_ether_addr *mac)
{
	/* The address is only OVS's name for the port. */
	of(dev)->mac = *mac;
	return 0;
}

static int mtu_set(struct rte_eth_dev *dev, uint16_t mtu)
{
	struct port *port = of(dev);
	int error = 0;

	pthread_mutex_lock(&port->session->lock);
	if (port->open)
		error = session_mtu(port, mtu);
	/* If viaductd is gone, the next one hears of it. */
	if (port->session->broken)
		error = 0;
	if (error == 0)
		port->mtu = mtu;
	pthread_mutex_unlock(&port->session->lock);
	return -error;
}

static int set_down(struct rte_eth_dev *dev, bool down)
{
	struct port *port = of(dev);
	bool before;
	int error = 0;

	pthread_mutex_lock(&port->session->lock);
	before = atomic_exchange(&port->down, down);
	if (port->open && before != down)
		error = session_link(port);
	/* If viaductd is gone, the next one hears of it. */
	if (port->session->broken)
		error = 0;
	if (error != 0)
		port->down = before;
	pthread_mutex_unlock(&port->session->lock);
	link_update(dev, 0);
	return -error;
}

static int set_link_up(struct rte_eth_dev *dev)
{
	return set_down(dev, false);
}

static int set_link_down(struct rte_eth_dev *dev)
{
	return set_down(dev, true);
}

/* Fills in statistics: for the port all its packets, no matter who forwarded them, and for its queues those that went
 * through OVS. */
static int stats_get(struct rte_eth_dev *dev, struct rte_eth_stats *stats)
{
	struct port *port = of(dev);
	struct viaduct_page sum = counts(port);

	stats->ipackets = sum.rx_packets - port->base.rx_packets;
	stats->ibytes = sum.rx_bytes - port->base.rx_bytes;
	stats->imissed = sum.rx_dropped - port->base.rx_dropped;
	stats->opackets = sum.tx_packets - port->base.tx_packets;
	stats->obytes = sum.tx_bytes - port->base.tx_bytes;
	stats->oerrors = sum.tx_dropped - port->base.tx_dropped + port->tx.errors;
	stats->ierrors = port->rx.errors;
	stats->rx_nombuf = port->rx.no_memory;
#if RTE_VERSION < RTE_VERSION_NUM(25, 11, 0, 0)
	stats->q_ipackets[0] = port->rx.packets;
	stats->q_ibytes[0] = port->rx.bytes;
	stats->q_opackets[0] = port->tx.packets;
	stats->q_obytes[0] = port->tx.bytes;
#endif
	return 0;
}

static int stats_reset(struct rte_eth_dev *dev)
{
	struct port *port = of(dev);

	port->base = counts(port);
	port->rx.errors = port->rx.no_memory = port->tx.errors = 0;
	port->rx.packets = port->rx.bytes = port->tx.packets = port->tx.bytes = 0;
	return 0;
}

static int infos_get(struct rte_eth_dev *dev, struct rte_eth_dev_info *info)
{
	info->max_rx_pktlen = MAX_MTU + RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN + 2 * RTE_VLAN_HLEN;
	info->max_mtu = MAX_MTU;
	info->min_mtu = RTE_ETHER_MIN_MTU;
	info->max_rx_queues = info->max_tx_queues = 1;
	info->max_mac_addrs = 1;
	info->speed_capa = RTE_ETH_LINK_SPEED_100G;
	info->rx_offload_capa = RTE_ETH_RX_OFFLOAD_SCATTER | RTE_ETH_RX_OFFLOAD_IPV4_CKSUM |
				RTE_ETH_RX_OFFLOAD_UDP_CKSUM | RTE_ETH_RX_OFFLOAD_TCP_CKSUM;
	info->tx_offload_capa = RTE_ETH_TX_OFFLOAD_MULTI_SEGS | RTE_ETH_TX_OFFLOAD_IPV4_CKSUM |
				RTE_ETH_TX_OFFLOAD_UDP_CKSUM | RTE_ETH_TX_OFFLOAD_TCP_CKSUM | RTE_ETH_TX_OFFLOAD_TCP_TSO;
	info->switch_info.name = DRIVER;
	info->switch_info.domain_id = switch_domain;
	info->switch_info.port_id = DATA(dev, port_id, uint16_t);
	return 0;
}

static int rx_queue_setup(struct rte_eth_dev *dev, uint16_t id, uint16_t count, unsigned int socket,
			  const struct rte_eth_rxconf *conf, struct rte_mempool *pool)
{
	(void)count, (void)socket, (void)conf;
	of(dev)->rx.pool = pool;
	DATA(dev, rx_queues, void **)[id] = &of(dev)->rx;
	return 0;
}

static int tx_queue_setup(struct rte_eth_dev *dev, uint16_t id, uint16_t count, unsigned int socket,
			  const struct rte_eth_txconf *conf)
{
	(void)count, (void)socket, (void)conf;
	DATA(dev, tx_queues, void **)[id] = &of(dev)->tx;
	return 0;
}

static int flow_ops_get(struct rte_eth_dev *dev, const struct rte_flow_ops **ops)
{
	(void)dev;
	*ops = flow_ops();
	return 0;
}

static int dev_close(struct rte_eth_dev *dev)
{
	struct port *port = of(dev);

	if (port == NULL)
		return 0;
	session_remove(port);
	/* ethdev would free them as its own. */
	DATA(dev, mac_addrs, void *) = NULL;
	DATA(dev, dev_private, void *) = NULL;
	free(port);
	return 0;
}

/* Returns the functions for DPDK, in its structure of this version. */
static void *device_ops(void)
{
	static uint64_t ops[VIADUCT_SIZE_eth_dev_ops / 8];

#define OP(member) MEMBER(eth_dev_ops, ops, member, void *)
	if (OP(dev_infos_get) != NULL)
		return ops;
	OP(dev_configure) = OP(dev_stop) = nothing;
	OP(promiscuous_enable) = OP(promiscuous_disable) = OP(allmulticast_enable) = OP(allmulticast_disable) = nothing;
	OP(dev_start) = dev_start;
	OP(dev_close) = dev_close;
	OP(link_update) = link_update;
	OP(dev_set_link_up) = set_link_up;
	OP(dev_set_link_down) = set_link_down;
	OP(mac_addr_set) = mac_addr_set;
	OP(mtu_set) = mtu_set;
	OP(stats_get) = stats_get;
	OP(stats_reset) = stats_reset;
	OP(rx_queue_setup) = rx_queue_setup;
	OP(tx_queue_setup) = tx_queue_setup;
	OP(flow_ops_get) = flow_ops_get;
	OP(dev_infos_get) = infos_get;
	return ops;
}

/* Fills a DPDK device that was allocated for the port. */
static void fill(struct rte_eth_dev *dev, struct rte_device *device, struct port *port)
{
	port->dev = dev;
	port->handle = DATA(dev, port_id, uint16_t);
	DEV(dev, device, void *) = device;
	DEV(dev, dev_ops, void *) = device_ops();
	DEV(dev, rx_pkt_burst, void *) = ring_receive;
	DEV(dev, tx_pkt_burst, void *) = ring_send;
	DATA(dev, dev_private, void *) = port;
	DATA(dev, mac_addrs, void *) = &port->mac;
	DATA(dev, numa_node, int) = 0;
	DATA(dev, dev_flags, uint32_t) |= RTE_ETH_DEV_FLOW_OPS_THREAD_SAFE |
						  RTE_ETH_DEV_AUTOFILL_QUEUE_XSTATS | RTE_ETH_DEV_INTR_LSC;
}

static int copy_argument(const char *key, const char *value, void *to)
{
	(void)key;
	*(const char **)to = value == NULL ? "" : value;
	return 0;
}

/* Sets `value` if there is such an argument: to "" if it has no value, for which some versions of DPDK call the
 * function, and others return an error. */
static void take_argument(struct rte_kvargs *args, const char *key, const char **value)
{
	if (rte_kvargs_process(args, key, copy_argument, value) < 0)
		*value = "";
}

/* Is true if each argument comes at most once, and at most one says where the socket is. DPDK takes any number of
 * them, and nobody would see which one counts. */
static bool are_clear(const struct rte_kvargs *args)
{
	return rte_kvargs_count(args, ARG_PORT) <= 1 &&
	       rte_kvargs_count(args, ARG_RUN_DIR) + rte_kvargs_count(args, ARG_SOCKET) <= 1;
}

/* Makes the port of a device with these arguments. */
static int probe_with(const char *name, struct rte_device *device, struct rte_kvargs *args)
{
	const char *of_viaduct = NULL, *socket = NULL, *run_dir = DEFAULT_RUN_DIR;
	char in_run_dir[PATH_MAX];
	struct session *session;
	struct rte_eth_dev *dev;
	struct port *port;
	int error;

	take_argument(args, ARG_PORT, &of_viaduct);
	take_argument(args, ARG_SOCKET, &socket);
	take_argument(args, ARG_RUN_DIR, &run_dir);
	if (of_viaduct == NULL || *of_viaduct == 0 || strlen(of_viaduct) >= VIADUCT_NAME) {
		LOG(ERR, "%s: say which port of viaductd's it is, by 1 to %d characters: %s,port=NAME\n", name,
		    VIADUCT_NAME - 1, name);
		return -EINVAL;
	}
	snprintf(in_run_dir, sizeof(in_run_dir), "%s/ovs.sock", run_dir);
	socket = socket == NULL ? in_run_dir : socket;
	if (*run_dir != '/' || *socket != '/' || strlen(socket) >= sizeof(session->path)) {
		LOG(ERR, "%s: run-dir= or socket= is no absolute path, or too long for a socket: %s\n", name, socket);
		return -EINVAL;
	}
	session = session_find(socket);
	port = calloc(1, sizeof(*port));
	dev = session == NULL || port == NULL ? NULL : rte_eth_dev_allocate(name);
	if (dev == NULL) {
		free(port);
		return -ENOMEM;
	}
	strcpy(port->name, of_viaduct);
	port->rx.port = port->tx.port = port;
	LIST_INIT(&port->flows);
	rte_eth_random_addr(port->mac.addr_bytes); /* unless viaductd says which */
	fill(dev, device, port);
	error = session_add(session, port);
	if (error != 0) {
		DATA(dev, mac_addrs, void *) = NULL;
		DATA(dev, dev_private, void *) = NULL;
		rte_eth_dev_release_port(dev);
		free(port);
		return -error;
	}
	rte_eth_dev_probing_finish(dev);
	return 0;
}

static struct rte_device *device_of(struct rte_vdev_device *vdev)
{
	return (void *)((char *)vdev + VIADUCT_AT_rte_vdev_device_device);
}

static int probe(struct rte_vdev_device *vdev)
{
	static const char *const keys[] = {ARG_PORT, ARG_RUN_DIR, ARG_SOCKET, NULL};
	struct rte_device *device = device_of(vdev);
	const struct rte_devargs *devargs = rte_dev_devargs(device);
	struct rte_kvargs *args = rte_kvargs_parse(devargs == NULL || devargs->args == NULL ? "" : devargs->args, keys);
	int error;

	if (args == NULL || !are_clear(args)) {
		LOG(ERR, "%s: the arguments are port=NAME, and run-dir=DIR or socket=PATH, each once\n", rte_dev_name(device));
		rte_kvargs_free(args);
		return -EINVAL;
	}
	if (switch_domain == RTE_ETH_DEV_SWITCH_DOMAIN_ID_INVALID)
		rte_eth_switch_domain_alloc(&switch_domain);
	error = probe_with(rte_dev_name(device), device, args);
	rte_kvargs_free(args);
	return error;
}

static int remove_device(struct rte_vdev_device *vdev)
{
	struct rte_device *device = device_of(vdev);
	struct rte_eth_dev *dev = rte_eth_dev_allocated(rte_dev_name(device));

	if (dev == NULL)
		return 0;
	dev_close(dev);
	return rte_eth_dev_release_port(dev);
}

/* Registers the driver if DPDK has the version for which it was compiled: other versions lay out their structures
 * differently. */
RTE_INIT(viaduct_register)
{
	static uint64_t driver[VIADUCT_SIZE_rte_vdev_driver / 8];
	/* The version of the program, which may have loaded different libraries than this driver. */
	const char *(*version)(void) = (const char *(*)(void))dlsym(RTLD_DEFAULT, "rte_version");
	const char *there = version != NULL ? version() : rte_version();
	char ours[32];

	viaduct_log = rte_log_register("pmd.net.viaduct");
	if (viaduct_log >= 0)
		rte_log_set_level(viaduct_log, RTE_LOG_NOTICE);
	snprintf(ours, sizeof(ours), "DPDK %u.%02u.", RTE_VER_YEAR, RTE_VER_MONTH);
	if (strncmp(there, ours, strlen(ours)) != 0) {
		LOG(ERR, "this driver is for %.*s, and the program has %s: install the driver for that version\n",
		    (int)strlen(ours) - 1, ours, there);
		return;
	}
	MEMBER(rte_vdev_driver, driver, driver_name, const char *) = DRIVER;
	MEMBER(rte_vdev_driver, driver, probe, void *) = probe;
	MEMBER(rte_vdev_driver, driver, remove, void *) = remove_device;
	rte_vdev_register(driver);
}
