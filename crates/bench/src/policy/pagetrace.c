/* A tool for valgrind that writes down every data access of a program by the page, and its system calls.
 *
 * Words of 64 bits on the descriptor of --pages-fd: page << 1 | is_write for an access (repetitions on one page are left out),
 * or ~0 and seven more words for a system call that has succeeded: number, five arguments, result. Compiled where it is used,
 * with the headers and libraries of valgrind itself.
 */
#include "pub_tool_basics.h"
#include "pub_tool_libcassert.h"
#include "pub_tool_libcbase.h"
#include "pub_tool_libcfile.h"
#include "pub_tool_libcprint.h"
#include "pub_tool_libcproc.h"
#include "pub_tool_machine.h"
#include "pub_tool_options.h"
#include "pub_tool_tooliface.h"
#include "pub_tool_vki.h"

#define WORDS 32768

static Int out_fd = -1;
static ULong words[WORDS];
static UInt used;
static ULong last = ~0ULL;
static ULong references;

static void flush(void)
{
	const HChar *at = (const HChar *)words;
	UInt left = used * sizeof words[0];

	while (out_fd >= 0 && left > 0) {
		Int done = VG_(write)(out_fd, at, left);

		if (done <= 0)
			out_fd = -1;
		at += done;
		left -= done;
	}
	used = 0;
}

static inline void put(ULong word)
{
	words[used++] = word;
	if (used == WORDS)
		flush();
}

/* A read after a write on the same page says nothing new; a write after a read does. */
static inline void touch(ULong page, ULong write)
{
	if ((last >> 1) == page && (last & 1) >= write)
		return;
	last = page << 1 | write;
	put(last);
}

static VG_REGPARM(2) void on_load(Addr addr, SizeT size)
{
	references++;
	touch(addr >> 12, 0);
	if (((addr ^ (addr + size - 1)) >> 12) != 0)
		touch((addr + size - 1) >> 12, 0);
}

static VG_REGPARM(2) void on_store(Addr addr, SizeT size)
{
	references++;
	touch(addr >> 12, 1);
	if (((addr ^ (addr + size - 1)) >> 12) != 0)
		touch((addr + size - 1) >> 12, 1);
}

static void call(IRSB *sb, Bool store, IRExpr *addr, Int size, IRExpr *guard)
{
	const HChar *name = store ? "on_store" : "on_load";
	void *function = VG_(fnptr_to_fnentry)(store ? (void *)on_store : (void *)on_load);
	IRDirty *dirty = unsafeIRDirty_0_N(2, name, function, mkIRExprVec_2(addr, mkIRExpr_HWord(size)));

	if (guard)
		dirty->guard = guard;
	addStmtToIRSB(sb, IRStmt_Dirty(dirty));
}

static void instrument_statement(IRSB *sb, IRStmt *st, IRTypeEnv *types)
{
	IRExpr *data;
	IRDirty *dirty;
	IRCAS *cas;

	switch (st->tag) {
	case Ist_WrTmp:
		data = st->Ist.WrTmp.data;
		if (data->tag == Iex_Load)
			call(sb, False, data->Iex.Load.addr, sizeofIRType(data->Iex.Load.ty), NULL);
		break;
	case Ist_Store:
		call(sb, True, st->Ist.Store.addr, sizeofIRType(typeOfIRExpr(types, st->Ist.Store.data)), NULL);
		break;
	case Ist_StoreG:
		call(sb, True, st->Ist.StoreG.details->addr,
		     sizeofIRType(typeOfIRExpr(types, st->Ist.StoreG.details->data)), st->Ist.StoreG.details->guard);
		break;
	case Ist_LoadG: {
		IRType type = Ity_INVALID, wide = Ity_INVALID;

		typeOfIRLoadGOp(st->Ist.LoadG.details->cvt, &wide, &type);
		call(sb, False, st->Ist.LoadG.details->addr, sizeofIRType(type), st->Ist.LoadG.details->guard);
		break;
	}
	case Ist_Dirty:
		dirty = st->Ist.Dirty.details;
		if (dirty->mFx == Ifx_Read || dirty->mFx == Ifx_Modify)
			call(sb, False, dirty->mAddr, dirty->mSize, NULL);
		if (dirty->mFx == Ifx_Write || dirty->mFx == Ifx_Modify)
			call(sb, True, dirty->mAddr, dirty->mSize, NULL);
		break;
	case Ist_CAS:
		cas = st->Ist.CAS.details;
		call(sb, True, cas->addr, sizeofIRType(typeOfIRExpr(types, cas->dataLo)) * (cas->dataHi ? 2 : 1), NULL);
		break;
	case Ist_LLSC:
		call(sb, st->Ist.LLSC.storedata != NULL, st->Ist.LLSC.addr, 8, NULL);
		break;
	default:
		break;
	}
}

static IRSB *instrument(VgCallbackClosure *closure, IRSB *in, const VexGuestLayout *layout,
			const VexGuestExtents *extents, const VexArchInfo *host, IRType guest_word, IRType host_word)
{
	IRSB *sb = deepCopyIRSBExceptStmts(in);

	for (Int i = 0; i < in->stmts_used; i++) {
		IRStmt *st = in->stmts[i];

		if (!st || st->tag == Ist_NoOp)
			continue;
		instrument_statement(sb, st, sb->tyenv);
		addStmtToIRSB(sb, st);
	}
	return sb;
}

static void before_call(ThreadId tid, UInt number, UWord *args, UInt count)
{
}

static void after_call(ThreadId tid, UInt number, UWord *args, UInt count, SysRes result)
{
	if (sr_isError(result))
		return;
	put(~0ULL);
	put(number);
	for (UInt i = 0; i < 5; i++)
		put(i < count ? args[i] : 0);
	put(sr_Res(result));
}

static void child_of_fork(ThreadId tid)
{
	used = 0;
	out_fd = -1;
}

static Bool option(const HChar *arg)
{
	return VG_INT_CLO(arg, "--pages-fd", out_fd);
}

static void usage(void)
{
	VG_(printf)("    --pages-fd=<number>       where the pages are written\n");
}

static void debug_usage(void)
{
}

static void before_all(void)
{
}

static void at_end(Int code)
{
	if (out_fd < 0)
		return;
	put(~0ULL);
	put(~0ULL);
	put(references);
	for (Int i = 0; i < 5; i++)
		put(0);
	flush();
}

static void start(void)
{
	VG_(details_name)("pagetrace");
	VG_(details_version)(NULL);
	VG_(details_description)("pages that a program touches");
	VG_(details_copyright_author)("");
	VG_(details_bug_reports_to)("");
	VG_(basic_tool_funcs)(before_all, instrument, at_end);
	VG_(needs_command_line_options)(option, usage, debug_usage);
	VG_(needs_syscall_wrapper)(before_call, after_call);
	VG_(atfork)(NULL, NULL, child_of_fork);
}

VG_DETERMINE_INTERFACE_VERSION(start)
