// Package localrun turns a command line of `glove run` into what gloved needs to run it
// as a managed session: a private state directory, an owner's policy that permits exactly
// this command, and the plan that asks for it.
//
// Nouns: a Request is what the user asked for; a Job is the answer, with everything
// decided: the program and what it needs to be readable (its closure), the directories
// that are copied or bound (mounts), the six limits; a State is the private directory of
// one run, and Gloved the process that serves it.
//
// The package is for the operator's own commands on the operator's own machine. It is not
// for controllers, which never name programs or paths, and it enforces nothing: the policy
// it writes is judged by the policy package and enforced by the runtime like any other.
package localrun
