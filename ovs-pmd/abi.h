/* DPDK's structures for drivers, which its development packages leave out: members by their offsets, and the functions
 * that its libraries export for drivers.
 */
#ifndef VIADUCT_ABI_H
#define VIADUCT_ABI_H

#include <rte_bus_vdev.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <rte_version.h>

/* The column of offsets.h (made by `offsets`) for the version that is compiled against. */
#if RTE_VER_YEAR == 22 && RTE_VER_MONTH == 11
#define VIADUCT_BY_DPDK(v22, v23, v24, v25) v22
#elif RTE_VER_YEAR == 23 && RTE_VER_MONTH == 11
#define VIADUCT_BY_DPDK(v22, v23, v24, v25) v23
#elif RTE_VER_YEAR == 24 && RTE_VER_MONTH == 11
#define VIADUCT_BY_DPDK(v22, v23, v24, v25) v24
#elif RTE_VER_YEAR == 25 && RTE_VER_MONTH == 11
#define VIADUCT_BY_DPDK(v22, v23, v24, v25) v25
#else
#error "offsets.h has no column for this version of DPDK: see ovs-pmd/offsets"
#endif

#include "offsets.h"

/* The member `member`, of type `type`, of `*of`, which is a `struct name`. */
#define MEMBER(name, of, member, type) (*(type *)((char *)(of) + VIADUCT_AT_##name##_##member))
#define DEV(dev, member, type) MEMBER(rte_eth_dev, dev, member, type)
#define DATA(dev, member, type) MEMBER(rte_eth_dev_data, DEV(dev, data, void *), member, type)

struct rte_eth_dev;
struct rte_vdev_device;
struct rte_flow_ops;

/* From ethdev_driver.h. */
extern char rte_eth_devices[];
struct rte_eth_dev *rte_eth_dev_allocate(const char *name);
struct rte_eth_dev *rte_eth_dev_allocated(const char *name);
int rte_eth_dev_release_port(struct rte_eth_dev *dev);
void rte_eth_dev_probing_finish(struct rte_eth_dev *dev);
int rte_eth_dev_callback_process(struct rte_eth_dev *dev, enum rte_eth_event_type event, void *argument);
int rte_eth_switch_domain_alloc(uint16_t *domain);

/* From bus_vdev_driver.h. */
void rte_vdev_register(void *driver);

#endif
