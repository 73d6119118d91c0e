package safefile

import "golang.org/x/sys/unix"

func mtime(st *unix.Stat_t) unix.Timespec { return st.Mtim }
func ctime(st *unix.Stat_t) unix.Timespec { return st.Ctim }
