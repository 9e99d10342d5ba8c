/* Symbols between libibverbs and its drivers, by the versions of older rdma-core: IBVERBS_PRIVATE_22 as in Debian 10,
 * 25 as in Ubuntu 20.04 (rdma-core 28), 33 as in Debian 11. Programs there do not load where the version is missing:
 * perftest and UCX are linked with libraries of drivers, ibv_devinfo with ibv_query_gid_type.
 *
 * Each leads to what the crate has for the version of today: no driver has a device here. */

#ifdef __x86_64__
#define GO jmp
#define THERE(name) name@PLT
#define FUNCTION @function
#define OBJECT @object
#else
#define GO b
#define THERE(name) name
#define FUNCTION %function
#define OBJECT %object
#endif

	.text

/* A function by an older version, and where it leads. */
.macro older version, name, to
	.globl older_\name\()_\version
	.type older_\name\()_\version, FUNCTION
	.symver older_\name\()_\version, \name@IBVERBS_PRIVATE_\version
older_\name\()_\version:
	GO THERE(\to)
	.size older_\name\()_\version, . - older_\name\()_\version
.endm

.macro version number
	.irp name, __ioctl_final_num_attrs, _verbs_init_and_alloc_context, execute_ioctl, ibv_cmd_advise_mr, ibv_cmd_alloc_dm, \
		ibv_cmd_alloc_mw, ibv_cmd_alloc_pd, ibv_cmd_attach_mcast, ibv_cmd_close_xrcd, ibv_cmd_create_ah, \
		ibv_cmd_create_counters, ibv_cmd_create_cq, ibv_cmd_create_cq_ex, ibv_cmd_create_flow, \
		ibv_cmd_create_flow_action_esp, ibv_cmd_create_qp, ibv_cmd_create_qp_ex, ibv_cmd_create_qp_ex2, \
		ibv_cmd_create_rwq_ind_table, ibv_cmd_create_srq, ibv_cmd_create_srq_ex, ibv_cmd_create_wq, ibv_cmd_dealloc_mw, \
		ibv_cmd_dealloc_pd, ibv_cmd_dereg_mr, ibv_cmd_destroy_ah, ibv_cmd_destroy_counters, ibv_cmd_destroy_cq, \
		ibv_cmd_destroy_flow, ibv_cmd_destroy_flow_action, ibv_cmd_destroy_qp, ibv_cmd_destroy_rwq_ind_table, \
		ibv_cmd_destroy_srq, ibv_cmd_destroy_wq, ibv_cmd_detach_mcast, ibv_cmd_free_dm, ibv_cmd_get_context, \
		ibv_cmd_modify_cq, ibv_cmd_modify_flow_action_esp, ibv_cmd_modify_qp, ibv_cmd_modify_qp_ex, ibv_cmd_modify_srq, \
		ibv_cmd_modify_wq, ibv_cmd_open_qp, ibv_cmd_open_xrcd, ibv_cmd_poll_cq, ibv_cmd_post_recv, ibv_cmd_post_send, \
		ibv_cmd_post_srq_recv, ibv_cmd_query_context, ibv_cmd_query_device_any, ibv_cmd_query_mr, ibv_cmd_query_port, \
		ibv_cmd_query_qp, ibv_cmd_query_srq, ibv_cmd_read_counters, ibv_cmd_reg_dm_mr, ibv_cmd_reg_mr, \
		ibv_cmd_req_notify_cq, ibv_cmd_rereg_mr, ibv_cmd_resize_cq, ibv_query_gid_type, ibv_read_ibdev_sysfs_file, \
		verbs_init_cq, verbs_open_device, verbs_set_ops, verbs_uninit_context
	older \number, \name, \name
	.endr
	older \number, verbs_register_driver_\number, verbs_register_driver_34
	/* Gone by now; refused as all of their kind. */
	.irp name, ibv_cmd_query_device, ibv_cmd_query_device_ex, ibv_get_fw_ver
	older \number, \name, ibv_cmd_query_device_any
	.endr
	/* Drivers may set it, and read it. */
	.globl older_destroy_\number
	.type older_destroy_\number, OBJECT
	.symver older_destroy_\number, verbs_allow_disassociate_destroy@IBVERBS_PRIVATE_\number
	.pushsection .bss
older_destroy_\number:
	.skip 1
	.size older_destroy_\number, 1
	.popsection
.endm

	version 22
	version 25
	version 33

	.section .note.GNU-stack, ""
