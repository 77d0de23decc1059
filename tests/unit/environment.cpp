#include <doctest/doctest.h>
#include <stdlib.h>

#include <chrono>
#include <cstdint>
#include <iomanip>  // std::quoted and its like must not be found instead of ours
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <rollcall/environment.hpp>
#include <rollcall/rendezvous/node_list.hpp>
#include <rollcall/rendezvous/plan.hpp>

namespace {
namespace rc = rollcall;
using rc::launch_environment;
using rc::launcher;
using rc::rendezvous_arguments;
using rc::variables;
using namespace std::chrono_literals;

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> all;
  while (!text.empty()) {
    const std::size_t end = text.find(at);
    all.emplace_back(text.substr(0, end));
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
  }
  return all;
}

/// "A=1 B=" as variables.
variables vars(std::string_view text) {
  variables v;
  for (std::string const& each : split(text, ' '))
    if (!each.empty()) v.set(each.substr(0, each.find('=')), each.substr(each.find('=') + 1));
  return v;
}

std::string joined(std::vector<std::string> const& all, char const* by) {
  std::string out;
  for (std::string const& each : all) out += (out.empty() ? "" : by) + each;
  return out;
}

void check_text(std::string const& is, std::string_view expected, bool whole) {
  INFO("expected: ", std::string(expected));
  INFO("is:       ", is);
  if (whole) {
    CHECK(is == expected);
  } else {
    CHECK(is.find(expected) != is.npos);
  }
}

// ---- node lists

struct list_row {
  char const* list;
  char const* names;  // or, where it cannot be read, what the error has in it
};

constexpr list_row good_lists[] = {
    {"", ""},
    {"(null)", ""},
    {"node0", "node0"},
    {"a,b", "a b"},
    {"n[1-3]", "n1 n2 n3"},
    {"n[08-11]", "n08 n09 n10 n11"},
    {"n[8-11]", "n8 n9 n10 n11"},
    {"n[1,02]", "n1 n02"},
    {"n[098-101]", "n098 n099 n100 n101"},
    {"n[5]", "n5"},
    {"n[7-7]", "n7"},
    {"n[3-4,1,9]", "n3 n4 n1 n9"},
    {"linux[1-2,5],gpu7", "linux1 linux2 linux5 gpu7"},
    {"nodeA,nodeB[001-002]", "nodeA nodeB001 nodeB002"},
    {"rack[1-2]-gpu", "rack1-gpu rack2-gpu"},
    {"r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"},
    {"r[1-2]n[01-02]x[7,9]", "r1n01x7 r1n01x9 r1n02x7 r1n02x9 r2n01x7 r2n01x9 r2n02x7 r2n02x9"},
    {"[1-2]", "1 2"},
    {"[0-1][0-1]", "00 01 10 11"},
    {"gpu-a-[01-02].cluster.example", "gpu-a-01.cluster.example gpu-a-02.cluster.example"},
    {"n_1,n-2,n.3", "n_1 n-2 n.3"},
    {"b,a,b", "b a b"},
    {"n[00-01]", "n00 n01"},
};
constexpr list_row bad_lists[] = {
    {"n[1", "a bracket is not closed at character 4"},
    {"n[", "a number is missing at character 3"},
    {"n[]", "a number is missing at character 3"},
    {"n]", "']' is not part of a name at character 2"},
    {"n[1-]", "a number is missing"},
    {"n[-1]", "a number is missing"},
    {"n[1-2-3]", "'-' does not belong into a bracket"},
    {"n[3-1]", "the range 3-1 runs backwards"},
    {"n[1-2", "a bracket is not closed"},
    {"n[[1]]", "a number is missing"},
    {"n[a-b]", "a number is missing"},
    {"n[1,]", "a number is missing"},
    {"a,,b", "a name is missing at character 3"},
    {",a", "a name is missing at character 1"},
    {"a,", "a name is missing at character 3"},
    {"a b", "' ' is not part of a name at character 2"},
    {"a\nb", "'\\x0a' is not part of a name"},
    {"bgl[123x456]", "the box form of three-dimensional machines is not supported"},
    {"n[0-999999999]", "it has more than 262144 names"},
    {"n[0-999][0-999]", "it has more than 262144 names"},
    {"n[0-262143],x", "it has more than 262144 names"},
    {"n[0-99999999999999999999]", "is too large"},
};

TEST_CASE("a node list stands for its names") {
  for (list_row const& r : good_lists) {
    CAPTURE(r.list);
    const auto is = rc::expand_node_list(r.list);
    REQUIRE(is.has_value());
    CHECK(joined(*is, " ") == r.names);
  }
  const auto many = rc::expand_node_list("n[0-262143]");
  REQUIRE(many.has_value());
  CHECK(many->size() == 262144);
  CHECK(many->back() == "n262143");
}

TEST_CASE("a node list that cannot be read says where") {
  for (list_row const& r : bad_lists) {
    CAPTURE(r.list);
    const auto is = rc::expand_node_list(r.list);
    REQUIRE_FALSE(is.has_value());
    CHECK(is.code() == rc::errc::invalid);
    check_text(is.error().message(), r.names, false);
  }
  const std::string long_name(300, 'x');
  CHECK_FALSE(rc::expand_node_list(long_name).has_value());
  // Wide numbers behind a narrow one: nothing may become as large as their product.
  const std::string zeros(200, '0');
  CHECK_FALSE(rc::expand_node_list("n[1," + zeros + "1][1," + zeros + "1]").has_value());
}

TEST_CASE("tasks per node") {
  const auto read = [](char const* text) {
    const auto is = rc::expand_tasks_per_node(text);
    if (!is) return std::string("error");
    std::string out;
    for (std::int64_t n : *is) out += (out.empty() ? "" : " ") + std::to_string(n);
    return out;
  };
  CHECK(read("4") == "4");
  CHECK(read("4(x3),2") == "4 4 4 2");
  CHECK(read("1,2(x2),1") == "1 2 2 1");
  CHECK(read("2(x1)") == "2");
  for (char const* text : {"", "x", "4(x)", "4(x3", "4(3)", "(x3)", "4,", ",4", "4(x0)", "-1", "4(x3)2", "1(x262145)", "4 (x2)"}) {
    CAPTURE(text);
    CHECK(read(text) == "error");
  }
}

// ---- environments

struct environment_row {
  char const* variables;
  char const* found;  // "slurm 3/8 n08:24242", or what the problems have in them
};

/// auto:// in one line; its problems where there are any.
std::string found(launch_environment const& e) {
  if (const std::vector<std::string> problems = e.problems(); !problems.empty())
    return std::to_string(problems.size()) + ": " + joined(problems, "; ");
  return std::string(to_string(e.source())) + " " + std::to_string(*e.rank()) + "/" + std::to_string(*e.world_size()) + " " +
         rc::host_port(*e.host(), e.port().value_or(0));
}

constexpr environment_row good_environments[] = {
    // torchrun, rollcall-run, by hand
    {"RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500", "torch 0/1 127.0.0.1:29500"},
    {"RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 GROUP_WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=29500 "
     "TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RUN_ID=none",
     "torch 3/4 node0:29500"},
    {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=::1 MASTER_PORT=1", "torch 0/2 [::1]:1"},
    {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=[::1] MASTER_PORT=1", "torch 0/2 [::1]:1"},
    {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=fe80::1%lo MASTER_PORT=1", "torch 0/2 [fe80::1%lo]:1"},
    {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=unix:/run/job/store", "torch 0/2 unix:/run/job/store"},
    // Kubeflow PyTorchJob: one rank a pod; the torchrun settings beside it say the same.
    {"RANK=1 WORLD_SIZE=3 MASTER_ADDR=job-master-0 MASTER_PORT=23456 PYTHONUNBUFFERED=1", "torch 1/3 job-master-0:23456"},
    {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=job-master-0 MASTER_PORT=23456 PET_NNODES=2 PET_NPROC_PER_NODE=1 PET_NODE_RANK=1",
     "torch 1/2 job-master-0:23456"},
    {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=m MASTER_PORT=23456 PET_NNODES=2 PET_NPROC_PER_NODE=auto PET_NODE_RANK=1", "torch 1/2 m:23456"},
    {"RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=m MASTER_PORT=23456 PET_NNODES=2 PET_NPROC_PER_NODE=4 PET_NODE_RANK=1",
     "torch 5/8 m:23456"},
    // torchrun inside an srun step, or inside a pod
    {"RANK=5 WORLD_SIZE=8 MASTER_ADDR=n1 MASTER_PORT=29500 SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 "
     "SLURM_STEP_NODELIST=n[1-2]",
     "torch 5/8 n1:29500"},
    {"RANK=5 WORLD_SIZE=8 MASTER_ADDR=n1 MASTER_PORT=29500 JOB_COMPLETION_INDEX=1", "torch 5/8 n1:29500"},
    // Slurm
    {"SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=8 SLURM_NTASKS=16 SLURM_STEP_ID=0 SLURM_JOB_ID=4242 SLURM_STEP_NODELIST=n[08-09] "
     "SLURM_JOB_NODELIST=n[01-16]",
     "slurm 3/8 n08:24242"},
    {"SLURM_PROCID=3 SLURM_NTASKS=8 SLURM_STEP_ID=2 SLURM_JOB_ID=4242 SLURM_JOB_NODELIST=rack[1-2]-gpu", "slurm 3/8 rack1-gpu:24244"},
    {"SLURM_PROCID=1 SLURM_NPROCS=2 SLURM_STEPID=0 SLURM_JOBID=19999 SLURM_NODELIST=linux[1-2]", "slurm 1/2 linux1:29999"},
    {"SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=1 SLURM_JOB_ID=19999 SLURM_STEP_NODELIST=(null) SLURM_JOB_NODELIST=a,b",
     "slurm 1/2 a:20000"},
    {"SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=a", "slurm 0/1 a:20001"},
    {"SLURM_PROCID=7 SLURM_NTASKS=8 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=a,b", "slurm 7/8 a:20001"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n[1-2] MASTER_ADDR=other", "slurm 0/2 other:20001"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n[1-2] MASTER_PORT=7", "slurm 0/2 n1:7"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n[1-2] SLURM_DISTRIBUTION=block",
     "slurm 0/2 n1:20001"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n[1-2] SLURM_DISTRIBUTION=cyclic SLURM_HOSTFILE=/x",
     "slurm 0/2 n1:20001"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n1 SLURM_DISTRIBUTION=arbitrary",
     "slurm 0/2 n1:20001"},
    {"SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n[1-2] SLURM_DISTRIBUTION=arbitrary MASTER_ADDR=n2",
     "slurm 1/2 n2:20001"},
    {"SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n[1-2] PMI_RANK=1 PMI_SIZE=2 PMIX_RANK=1",
     "slurm 1/2 n1:20001"},
    {"SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n[1-2] WORLD_SIZE=2", "slurm 1/2 n1:20001"},
    {"SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n[1-2] RANK=1 JOB_COMPLETION_INDEX=0",
     "slurm 1/2 n1:20001"},
    // mpirun in a batch script, in a shell of salloc, and where Slurm's task is one of one
    {"SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-2] OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 MASTER_ADDR=n1 "
     "MASTER_PORT=5",
     "openmpi 5/8 n1:5"},
    {"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_ID=4294967290 OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 MASTER_ADDR=n1 "
     "MASTER_PORT=5",
     "openmpi 5/8 n1:5"},
    // MPI
    {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_NODE_RANK=1 MASTER_ADDR=n1 MASTER_PORT=5", "openmpi 1/4 n1:5"},
    {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=4 MASTER_PORT=5", "openmpi 1/4 127.0.0.1:5"},
    {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 PMIX_RANK=1 MASTER_ADDR=n1 MASTER_PORT=5", "openmpi 1/4 n1:5"},
    {"PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4 MASTER_PORT=5", "pmi 1/4 127.0.0.1:5"},
    {"PMI_RANK=1 PMI_SIZE=4 MASTER_ADDR=n1 MASTER_PORT=5", "pmi 1/4 n1:5"},
    {"PMIX_RANK=1 WORLD_SIZE=4 MASTER_ADDR=n1 MASTER_PORT=5", "pmix 1/4 n1:5"},
    {"FLUX_TASK_RANK=1 FLUX_JOB_SIZE=4 PMI_RANK=1 MASTER_ADDR=n1 MASTER_PORT=5 PMI_SIZE=4", "pmi 1/4 n1:5"},
    {"FLUX_TASK_RANK=1 FLUX_JOB_SIZE=4 PMIX_RANK=1 MASTER_ADDR=n1 MASTER_PORT=5", "flux 1/4 n1:5"},
    {"JSM_NAMESPACE_RANK=1 JSM_NAMESPACE_SIZE=4 MASTER_ADDR=n1 MASTER_PORT=5", "jsm 1/4 n1:5"},
    {"MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=4 MASTER_ADDR=n1 MASTER_PORT=5", "mvapich 1/4 n1:5"},
    {"PALS_RANKID=1 WORLD_SIZE=4 MASTER_ADDR=n1 MASTER_PORT=5", "pals 1/4 n1:5"},
    // Kubernetes: Indexed Job, TrainJob without torchrun, JobSet
    {"JOB_COMPLETION_INDEX=2 WORLD_SIZE=4 MASTER_ADDR=job-0.svc MASTER_PORT=29500", "kubernetes 2/4 job-0.svc:29500"},
    {"JOB_COMPLETION_INDEX=1 PET_NODE_RANK=1 PET_NNODES=2 PET_NPROC_PER_NODE=1 PET_MASTER_ADDR=t-node-0-0.t PET_MASTER_PORT=29400",
     "kubernetes 1/2 t-node-0-0.t:29400"},
    {"PET_NODE_RANK=1 PET_NNODES=2:2 PET_MASTER_ADDR=t-node-0-0.t PET_MASTER_PORT=29400", "kubernetes 1/2 t-node-0-0.t:29400"},
    {"PET_NODE_RANK=1 PET_NNODES=2 PET_MASTER_ADDR=a PET_MASTER_PORT=29400 MASTER_ADDR=b MASTER_PORT=1", "kubernetes 1/2 b:1"},
    {"JOB_COMPLETION_INDEX=1 JOB_GLOBAL_INDEX=2 PODS_PER_JOB=3 WORLD_SIZE=9 MASTER_ADDR=js-w-0-0.js MASTER_PORT=29500",
     "kubernetes 7/9 js-w-0-0.js:29500"},
};

/// The number of problems and a part of their text.
constexpr environment_row bad_environments[] = {
    {"", "4: no launcher has left its variables: none of RANK, WORLD_SIZE, SLURM_PROCID, OMPI_COMM_WORLD_RANK, PMI_RANK"},
    {"RANK=0", "3: WORLD_SIZE is not set; MASTER_ADDR is not set; MASTER_PORT is not set"},
    {"WORLD_SIZE=2", "3: RANK is not set; MASTER_ADDR"},
    {"RANK= WORLD_SIZE=2", "3: RANK is empty; MASTER_ADDR is not set; MASTER_PORT is not set"},
    {"RANK=0 WORLD_SIZE=0 MASTER_ADDR=h MASTER_PORT=1", "1: WORLD_SIZE='0' is not in 1..2147483647"},
    {"RANK=-1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1", "1: RANK='-1' is not in 0..2147483646"},
    {"RANK=2 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1", "1: rank 2 (RANK) is not below world_size 2 (WORLD_SIZE); ranks count from 0"},
    {"RANK=1 WORLD_SIZE=1 MASTER_ADDR=h MASTER_PORT=1", "1: rank 1 (RANK) is not below world_size 1"},
    {"RANK=0 WORLD_SIZE=9223372036854775808 MASTER_ADDR=h MASTER_PORT=1", "1: WORLD_SIZE='9223372036854775808' is not in"},
    {"RANK=a WORLD_SIZE=b MASTER_ADDR=/ MASTER_PORT=123456",
     "4: RANK='a' is not a whole number; WORLD_SIZE='b' is not a whole number; MASTER_ADDR='/' has '/' in it, which no host has; "
     "MASTER_PORT='123456' is not in 0..65535"},
    {"RANK=0 WORLD_SIZE=2 MASTER_ADDR= MASTER_PORT=", "2: MASTER_ADDR is empty; MASTER_PORT is empty"},
    {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=h:29500 MASTER_PORT=29500", "1: MASTER_ADDR='h:29500' has a port in it"},
    {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=tcp://h:29500 MASTER_PORT=29500",
     "1: MASTER_ADDR='tcp://h:29500' is a URL, and a host's name or address belongs here, without tcp:// and without a port"},
    {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=unix:store MASTER_PORT=29500", "1: MASTER_ADDR='unix:store' is not the absolute path of a unix socket"},
    {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1 ROLLCALL_ATTEMPT=x", "1: ROLLCALL_ATTEMPT='x' is not a whole number"},
    {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.300 MASTER_PORT=29500", "1: MASTER_ADDR='10.0.0.300' is not an IPv4 address"},
    {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=tcp://10.3.0.7:29500",
     "1: MASTER_PORT='tcp://10.3.0.7:29500' is not a port; Kubernetes sets it so"},
    // RANK counts pods, WORLD_SIZE counts processes
    {"RANK=1 WORLD_SIZE=8 MASTER_ADDR=m MASTER_PORT=1 PET_NNODES=2 PET_NPROC_PER_NODE=4 PET_NODE_RANK=1",
     "1: RANK=1 counts pods, WORLD_SIZE=8 counts processes"},
    // Slurm
    {"SLURM_PROCID=0 SLURM_STEP_ID=0",
     "3: neither SLURM_STEP_NUM_TASKS nor SLURM_NTASKS nor SLURM_NPROCS is set; MASTER_ADDR is not set, and Slurm gives no node list; "
     "MASTER_PORT"},
    {"SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n1", "4: no launcher has left its variables"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n[1-2] SLURM_DISTRIBUTION=arbitrary",
     "1: MASTER_ADDR is not set, and SLURM_DISTRIBUTION='arbitrary' puts ranks on nodes in an order that the node list does not tell: set "
     "it to the host of rank 0"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n[1-2] SLURM_HOSTFILE=/hosts",
     "1: MASTER_ADDR is not set, and SLURM_HOSTFILE is set"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n[1-2] SLURM_HET_SIZE=2",
     "1: MASTER_ADDR is not set, and a heterogeneous job"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n[1-",
     "1: SLURM_STEP_NODELIST: node list 'n[1-': a number is missing"},
    {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=x SLURM_STEP_NODELIST=n1", "1: SLURM_JOB_ID='x' is not a whole number"},
    {"SLURM_PROCID=8 SLURM_NTASKS=8 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n1",
     "1: rank 8 (SLURM_PROCID) is not below world_size 8 (SLURM_NTASKS)"},
    {"SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n[1-2] WORLD_SIZE=4",
     "1: WORLD_SIZE=4 and SLURM_NTASKS=2 (slurm) differ"},
    {"SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n[1-2] RANK=0",
     "1: RANK=0 and SLURM_PROCID=1 (slurm) differ"},
    // counts that cannot all be true
    {"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_TASKS_PER_NODE=4(x2)",
     "1: SLURM_STEP_NUM_TASKS=4 and SLURM_STEP_TASKS_PER_NODE cannot both be true: that has 8 tasks"},
    {"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_NUM_NODES=3",
     "1: SLURM_STEP_NUM_NODES=3 and SLURM_STEP_NODELIST cannot both be true: that has 2 nodes"},
    {"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_NUM_NODES=2 SLURM_NODEID=2",
     "1: SLURM_NODEID=2 and SLURM_STEP_NUM_NODES=2 cannot both be true: nodes count from 0"},
    {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=8 MASTER_ADDR=h MASTER_PORT=1",
     "1: OMPI_COMM_WORLD_LOCAL_SIZE=8 and OMPI_COMM_WORLD_SIZE=4 cannot both be true: more ranks on this node than there are"},
    {"PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=2 MPI_LOCALNRANKS=2 MASTER_ADDR=h MASTER_PORT=1",
     "1: MPI_LOCALRANKID=2 and MPI_LOCALNRANKS=2 cannot both be true"},
    // one has started the other
    {"SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n[1-2] OMPI_COMM_WORLD_RANK=5 "
     "OMPI_COMM_WORLD_SIZE=8",
     "1: slurm (SLURM_PROCID=1, SLURM_NTASKS=2) and openmpi (OMPI_COMM_WORLD_RANK=5, OMPI_COMM_WORLD_SIZE=8) disagree, one may have "
     "started the other: "
     "say whom to believe with ?from=slurm or ?from=openmpi"},
    {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 PMI_RANK=0 PMI_SIZE=4 MASTER_ADDR=h MASTER_PORT=1",
     "1: openmpi (OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=4) and pmi (PMI_RANK=0"},
    // MPI
    {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2",
     "2: MASTER_ADDR is not set, and openmpi does not tell on which host rank 0 is; MASTER_PORT is not set, and openmpi"},
    {"OMPI_COMM_WORLD_RANK=1 MASTER_ADDR=h MASTER_PORT=1", "1: OMPI_COMM_WORLD_SIZE is not set"},
    {"PMIX_RANK=1 MASTER_ADDR=h MASTER_PORT=1", "1: WORLD_SIZE is not set, and pmix does not tell how many ranks there are"},
    {"PMIX_RANK=4 WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=1", "1: rank 4 (PMIX_RANK) is not below world_size 4 (WORLD_SIZE)"},
    // Kubernetes
    {"JOB_COMPLETION_INDEX=2",
     "3: WORLD_SIZE is not set, and Kubernetes does not tell a pod how many there are; MASTER_ADDR is not set: the name of the pod with "
     "rank 0"},
    {"JOB_COMPLETION_INDEX=x WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1", "1: JOB_COMPLETION_INDEX='x' is not a whole number"},
    {"PET_NODE_RANK=0 PET_NNODES=2 PET_NPROC_PER_NODE=4 MASTER_ADDR=h MASTER_PORT=1",
     "1: PET_NPROC_PER_NODE='4' asks torchrun for several ranks in this pod"},
    {"PET_NODE_RANK=0 PET_NNODES=2 PET_NPROC_PER_NODE=auto PET_MASTER_ADDR=h PET_MASTER_PORT=1",
     "1: PET_NPROC_PER_NODE='auto' asks torchrun"},
    {"PET_NODE_RANK=0 PET_NNODES=2:4 MASTER_ADDR=h MASTER_PORT=1", "1: PET_NNODES='2:4' is a range that torchrun settles"},
    {"JOB_COMPLETION_INDEX=1 PET_NODE_RANK=2 PET_NNODES=4 MASTER_ADDR=h MASTER_PORT=1",
     "1: JOB_COMPLETION_INDEX=1 and PET_NODE_RANK=2 differ"},
    {"JOB_COMPLETION_INDEX=1 JOB_GLOBAL_INDEX=2 WORLD_SIZE=9 MASTER_ADDR=h MASTER_PORT=1",
     "1: JOB_GLOBAL_INDEX=2 needs PODS_PER_JOB beside it"},
    {"JOB_COMPLETION_INDEX=3 JOB_GLOBAL_INDEX=0 PODS_PER_JOB=3 WORLD_SIZE=9 MASTER_ADDR=h MASTER_PORT=1",
     "1: JOB_COMPLETION_INDEX=3 is not below PODS_PER_JOB=3"},
    {"PET_NODE_RANK=0 PET_NNODES=2 WORLD_SIZE=4 MASTER_ADDR=h", "1: WORLD_SIZE=4 and PET_NNODES=2 (kubernetes) differ"},
};

TEST_CASE("auto:// finds the launcher, and what it says") {
  for (environment_row const& r : good_environments) {
    CAPTURE(r.variables);
    check_text(found(launch_environment::detect(vars(r.variables))), r.found, true);
  }
}

TEST_CASE("what the launcher's variables do not say, or say twice, is asked for") {
  for (environment_row const& r : bad_environments) {
    CAPTURE(r.variables);
    const launch_environment e = launch_environment::detect(vars(r.variables));
    check_text(found(e), r.found, false);
    CHECK(found(e).starts_with(std::string_view(r.found).substr(0, 3)));
  }
}

TEST_CASE("variables that are there and say nothing are named") {
  constexpr environment_row rows[] = {
      {"SLURM_PROCID=0", "PET_NODE_RANK is set, and SLURM_PROCID=0 is there without an srun step or a number of tasks above 1 (SLURM_STEP_ID, "
                         "SLURM_NTASKS); WORLD_SIZE"},
      {"SLURM_PROCID=x", "is set, and SLURM_PROCID='x' is not a whole number, is there without an srun step"},
      {"JOB_COMPLETION_INDEX= MASTER_ADDR=h MASTER_PORT=1", "PALS_RANKID, PET_NODE_RANK is set, and JOB_COMPLETION_INDEX is empty; WORLD_SIZE"},
      {"RANK= PMI_RANK=", "PET_NODE_RANK is set, and RANK is empty, and PMI_RANK is empty; WORLD_SIZE"},
  };
  for (environment_row const& r : rows) {
    CAPTURE(r.variables);
    check_text(found(launch_environment::detect(vars(r.variables))), r.found, false);
  }
}

TEST_CASE("env:// reads torchrun's variables only") {
  const launch_environment e = launch_environment::torch(vars("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n1 SLURM_JOB_ID=7"));
  CHECK(found(e) == "4: RANK is not set; WORLD_SIZE is not set; MASTER_ADDR is not set; MASTER_PORT is not set");
  CHECK(*e.run_id() == "7.0");
}

TEST_CASE("?from= says whom to believe") {
  const variables v = vars(
      "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n[1-2] OMPI_COMM_WORLD_RANK=5 "
      "OMPI_COMM_WORLD_SIZE=8 "
      "MASTER_ADDR=h MASTER_PORT=1");
  CHECK(found(launch_environment::detect(v, launcher::slurm)) == "slurm 1/2 h:1");
  CHECK(found(launch_environment::detect(v, launcher::openmpi)) == "openmpi 5/8 h:1");
  CHECK(found(launch_environment::detect(v, launcher::pmi)) == "2: PMI_RANK is not set; PMI_SIZE is not set");
  CHECK(found(launch_environment::detect(v, launcher::kubernetes)).starts_with("2: neither JOB_COMPLETION_INDEX nor PET_NODE_RANK is set"));
  CHECK(found(launch_environment::detect(v, launcher::torch)) == "2: RANK is not set; WORLD_SIZE is not set");
  variables both = v;
  both.set("RANK", "0").set("WORLD_SIZE", "16");
  CHECK(found(launch_environment::detect(both)) == "torch 0/16 h:1");
  CHECK(found(launch_environment::detect(both, launcher::slurm)) == "slurm 1/2 h:1");
  for (char const* name : {"torch", "slurm", "openmpi", "pmi", "flux", "jsm", "mvapich", "pmix", "pals", "kubernetes"}) {
    REQUIRE(rc::launcher_named(name).has_value());
    CHECK(to_string(*rc::launcher_named(name)) == name);
  }
  CHECK_FALSE(rc::launcher_named("none").has_value());
  CHECK_FALSE(rc::launcher_named("").has_value());
}

TEST_CASE("the place on the node, the attempt and the run come along") {
  const launch_environment t = launch_environment::detect(
      vars("RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 GROUP_WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1 "
           "TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RUN_ID=job7 ROLLCALL_LISTEN_FD=3 USE_LIBUV=0"));
  CHECK(*t.local_rank() == 1);
  CHECK(*t.local_world_size() == 2);
  CHECK(*t.node() == 1);
  CHECK(*t.nodes() == 2);
  CHECK(*t.attempt() == 2);
  CHECK(t.attempt().origin() == "TORCHELASTIC_RESTART_COUNT");
  CHECK(*t.run_id() == "job7");
  CHECK(*t.agent_store());
  CHECK(*t.listen_fd() == 3);
  CHECK_FALSE(*t.use_libuv());
  CHECK(launch_environment::detect(vars("RANK=0 WORLD_SIZE=1 TORCHELASTIC_RESTART_COUNT=2 ROLLCALL_ATTEMPT=3")).attempt().value() == 3);

  const launch_environment s = launch_environment::detect(
      vars("SLURM_PROCID=13 SLURM_NTASKS=14 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n[1-4] SLURM_NODEID=3 SLURM_LOCALID=1 "
           "SLURM_STEP_TASKS_PER_NODE=4(x3),2 SLURM_TASKS_PER_NODE=8(x4) SLURM_STEP_NUM_NODES=4 SLURM_NNODES=9 SLURM_RESTART_COUNT=1"));
  CHECK(*s.local_rank() == 1);
  CHECK(*s.local_world_size() == 2);
  CHECK(*s.node() == 3);
  CHECK(*s.nodes() == 4);
  CHECK(*s.attempt() == 1);
  CHECK(*s.run_id() == "1.0");
  CHECK(s.warnings().empty());
  CHECK(launch_environment::detect(vars("SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n1")).warnings().size() == 1);
  // Not a launcher's flag where another launcher counts.
  CHECK_FALSE(launch_environment::detect(vars("PMI_RANK=0 PMI_SIZE=2 TORCHELASTIC_USE_AGENT_STORE=True")).agent_store().has_value());
}

TEST_CASE("describe() shows each value and where it came from") {
  const std::string text = launch_environment::detect(vars("SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=8 SLURM_STEP_ID=0 SLURM_JOB_ID=4242 "
                                                    "SLURM_STEP_NODELIST=n[08-09] PMI_RANK=3 PMI_SIZE=8 MASTER_PORT=x"))
                               .describe();
  for (char const* line :
       {"launcher          slurm\n", "rank              3                         SLURM_PROCID\n",
        "world_size        8                         SLURM_STEP_NUM_TASKS\n",
        "host              n08                       first of SLURM_STEP_NODELIST='n[08-09]'\n",
        "port              (wrong)                   MASTER_PORT='x' is not a whole number\n",
        "run_id            4242.0                    SLURM_JOB_ID and SLURM_STEP_ID\n", "not used          PMI_RANK=3 (pmi)\n"})
    check_text(text, line, false);
  check_text(launch_environment().describe(), "launcher          none\n", false);
}

TEST_CASE("this process's variables are a list too") {
  ::setenv("ROLLCALL_TEST_VARIABLE", "a=b", 1);
  const variables v = variables::of_process();
  CHECK(v.get("ROLLCALL_TEST_VARIABLE") == "a=b");
  ::unsetenv("ROLLCALL_TEST_VARIABLE");
  CHECK(v.has("ROLLCALL_TEST_VARIABLE"));
  CHECK_FALSE(variables::of_process().has("ROLLCALL_TEST_VARIABLE"));
}

// ---- the merge

struct plan_row {
  char const* url;
  char const* variables;
  char const* planned;  // "tcp 0/2 h:1 serves", "file 0/2 /x", or what the error has in it
};

std::string planned(std::string_view url, rendezvous_arguments const& arguments, variables const& v) {
  const auto plan = rc::try_plan_rendezvous(url, arguments, v);
  if (!plan) return plan.error().message();
  std::string out = plan->scheme + " " + std::to_string(*plan->rank) + "/" + std::to_string(*plan->world_size) + " ";
  out += plan->scheme == "file" ? plan->path : plan->host ? rc::host_port(*plan->host, plan->port.value_or(0)) : plan->url.authority();
  return out + (plan->serves ? " serves" : "");
}

constexpr plan_row plans[] = {
    {"tcp://h:1?rank=0&world_size=2", "", "tcp 0/2 h:1 serves"},
    {"tcp://h:1?rank=1&world_size=2", "", "tcp 1/2 h:1"},
    {"tcp://h:1?rank=1&world_size=2", "RANK=0 WORLD_SIZE=9 MASTER_ADDR=x MASTER_PORT=2", "tcp 1/2 h:1"},
    {"tcp://h:1", "RANK=1 WORLD_SIZE=4 MASTER_ADDR=x MASTER_PORT=2", "tcp 1/4 h:1"},
    {"tcp://127.0.0.1:0?rank=0&world_size=1", "", "tcp 0/1 127.0.0.1:0 serves"},
    {"env://", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1", "tcp 0/2 h:1 serves"},
    {"env://?rank=1", "RANK= WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1", "tcp 1/2 h:1"},
    {"env://x:7", "RANK=0 WORLD_SIZE=2 MASTER_ADDR= MASTER_PORT=z", "tcp 0/2 x:7 serves"},
    {"env://:7", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1", "tcp 0/2 h:7 serves"},
    {"auto://", "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=1 SLURM_STEP_NODELIST=n[1-2]", "tcp 0/2 n1:20001 serves"},
    {"auto://x:7", "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[1-2] SLURM_DISTRIBUTION=arbitrary", "tcp 1/2 x:7"},
    {"auto://h:1?rank=0&world_size=1", "", "tcp 0/1 h:1 serves"},
    {"auto://?from=pmi", "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 PMI_RANK=5 PMI_SIZE=8 MASTER_ADDR=h MASTER_PORT=1", "tcp 5/8 h:1"},
    {"file:///x?rank=0&world_size=2", "MASTER_PORT=z", "file 0/2 /x"},
    {"file:///x", "RANK=1 WORLD_SIZE=2", "file 1/2 /x"},
    {"unix:///run/store?rank=0&world_size=2", "MASTER_ADDR=h MASTER_PORT=z", "tcp 0/2 unix:/run/store serves"},
    {"unix:///run/store", "RANK=1 WORLD_SIZE=2", "tcp 1/2 unix:/run/store"},
    {"env://", "RANK=1 WORLD_SIZE=2 MASTER_ADDR=unix:/run/store", "tcp 1/2 unix:/run/store"},
    {"env://", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=unix:/run/store MASTER_PORT=0", "tcp 0/2 unix:/run/store serves"},
    {"unix:///run/store", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=unix:/run/store TORCHELASTIC_USE_AGENT_STORE=True", "tcp 0/2 unix:/run/store"},
    {"env://:7?bind=*", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=unix:/run/store",
     "2 problems with env://:7?bind=*: unix:/run/store (MASTER_ADDR) is a unix socket, and port 7 is given; unix:/run/store (MASTER_ADDR) is "
     "a unix socket, which is listened at where it is: no bind"},
    {"env://", "RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_ADDR=unix:/run/store", "is reached on its own host only, and ranks live on several nodes"},
    // The launcher serves, or says so of another address (field log F29).
    {"env://", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1 TORCHELASTIC_USE_AGENT_STORE=True", "tcp 0/2 h:1"},
    {"env://", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1 TORCHELASTIC_USE_AGENT_STORE=False", "tcp 0/2 h:1 serves"},
    {"tcp://H:1", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1 TORCHELASTIC_USE_AGENT_STORE=true", "tcp 0/2 H:1"},
    {"tcp://h:2", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1 TORCHELASTIC_USE_AGENT_STORE=True", "tcp 0/2 h:2 serves"},
    {"tcp://h:2", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1 TORCHELASTIC_USE_AGENT_STORE=perhaps", "tcp 0/2 h:2 serves"},
    // Only the process that serves judges use_libuv (F36).
    {"tcp://h:1?rank=1&world_size=2&use_libuv=", "USE_LIBUV=maybe", "tcp 1/2 h:1"},
    {"tcp://h:1?rank=0&world_size=2&use_libuv=1", "USE_LIBUV=maybe", "tcp 0/2 h:1 serves"},

    {"env://", "RANK= WORLD_SIZE=2",
     "rendezvous: invalid argument: 3 problems with env://: RANK is empty; MASTER_ADDR is not set; MASTER_PORT is not set; found: "
     "world_size 2 (WORLD_SIZE)"},
    {"env://", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1 TORCHELASTIC_USE_AGENT_STORE=perhaps",
     "TORCHELASTIC_USE_AGENT_STORE in the environment is 'perhaps'; it takes"},
    {"env://", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1 TORCHELASTIC_RESTART_COUNT=x",
     ": TORCHELASTIC_RESTART_COUNT='x' is not a whole number"},
    {"env://", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=0",
     "port 0 (MASTER_PORT) lets the system choose a port that none of the 1 other rank would learn"},
    {"tcp://h:0?rank=1&world_size=3", "", "none of the 2 other ranks would learn: name a port, or give ?port_file=/PATH"},
    {"tcp://h:0?rank=1&world_size=3&port_file=/x/p", "", "tcp 1/3 h:0"},
    {"env://?port_file=/x/p", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=0", "tcp 0/2 h:0 serves"},
    {"tcp://h:1?rank=1&world_size=3&port_file=/x/p", "", "port 1 (the URL) needs no ?port_file, which is for port 0"},
    {"tcp://h:0?rank=1&world_size=1", "", ": rank 1 (?rank of the URL) is not below world_size 1 (?world_size of the URL)"},
    {"tcp://h:1?rank=0&world_size=2&use_libuv=", "", ": ?use_libuv is empty"},
    {"env://", "RANK=0 WORLD_SIZE=2 USE_LIBUV=maybe TORCHELASTIC_USE_AGENT_STORE=perhaps", "4 problems with env://: MASTER_ADDR is not set"},
    {"env://",
     "RANK=a WORLD_SIZE=b MASTER_ADDR=/ MASTER_PORT=c LOCAL_RANK=d LOCAL_WORLD_SIZE=e GROUP_RANK=f TORCHELASTIC_RESTART_COUNT=g "
     "TORCHELASTIC_USE_AGENT_STORE=h ROLLCALL_LISTEN_FD=i USE_LIBUV=j",
     "11 problems with env://: RANK='a' is not a whole number"},
    {"tcp://h:1?rank=1&world_size=2", "LOCAL_RANK=d", "tcp 1/2 h:1"},  // this place is not the environment's
    {"tcp://h:1?rank=0&world_size=2", "USE_LIBUV=maybe", ": USE_LIBUV in the environment is 'maybe'; it takes 1, 0, true, false, yes, no, on or off"},
    {"tcp://h:1", "", "2 problems with tcp://h:1: there is no rank: no ?rank= in the URL, and RANK is not set; there is no world_size"},
    {"tcp://h:1", "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0", "RANK is not set, and SLURM_PROCID=1 (slurm) is read by auto:// only"},
    {"file:///x?rank=2&world_size=2", "", ": rank 2 (?rank of the URL) is not below"},
    {"tcp://h:1?rank=5", "WORLD_SIZE=4", ": rank 5 (?rank of the URL) is not below world_size 4 (WORLD_SIZE)"},
    {"tcp://:x?rank=-1&world_size=0&rnak=1", "", "5 problems with tcp://:x?rank=-1&world_size=0&rnak=1: it has no host"},
    {"tcq://h:1?rank=0&world_size=1", "", ": there is no scheme 'tcq'"},
    {"h:1", "", "invalid argument: h:1: it does not begin with"},
    {"auto://?from=lsf", "RANK=0 WORLD_SIZE=1 MASTER_ADDR=h MASTER_PORT=1", "?from='lsf' is none of torch, slurm, openmpi"},
    {"auto://?rank=0", "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 PMI_RANK=5 PMI_SIZE=8 MASTER_ADDR=h MASTER_PORT=1", "disagree"},
};

TEST_CASE("arguments beat the URL, the URL beats the environment") {
  for (plan_row const& r : plans) {
    CAPTURE(r.url);
    CAPTURE(r.variables);
    const std::string is = planned(r.url, {}, vars(r.variables));
    check_text(is, r.planned, std::string_view(r.planned).starts_with("tcp ") || std::string_view(r.planned).starts_with("file "));
  }
  const variables v = vars("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1 USE_LIBUV=0");
  CHECK(planned("env://", rendezvous_arguments().rank(1), v) == "tcp 1/2 h:1");
  CHECK(planned("env://?rank=1&world_size=4", rendezvous_arguments().rank(3).world_size(5), v) == "tcp 3/5 h:1");
  CHECK(planned("tcp://h:0?rank=0&world_size=2", rendezvous_arguments().publishes_port(true), {}) == "tcp 0/2 h:0 serves");
  CHECK(planned("etcd://a:1,b:2?rank=0&world_size=2&ttl=5", rendezvous_arguments().schemes({"etcd"}), {}) == "etcd 0/2 a:1,b:2");

  const auto use_libuv = [&](std::string const& url, rendezvous_arguments const& a) { return rc::plan_rendezvous(url, a, v).use_libuv; };
  CHECK(use_libuv("env://", {}).value() == false);
  CHECK(use_libuv("env://", {}).origin() == "USE_LIBUV");
  CHECK(use_libuv("env://?use_libuv=yes", {}).value() == true);
  CHECK(use_libuv("env://?use_libuv=yes", rendezvous_arguments().use_libuv(false)).value() == false);
  CHECK_FALSE(use_libuv("env://?rank=1&use_libuv=yes", {}).has_value());

  const rc::rendezvous_plan p =
      rc::plan_rendezvous("env://?timeout=5&bind=[::]&generation=g1", rendezvous_arguments().timeout(7s).attempt(4), v);
  CHECK(*p.timeout == 7s);
  CHECK(*p.bind == "::");
  CHECK(*p.generation == "g1");
  CHECK(*p.attempt == 4);
  CHECK(*rc::plan_rendezvous("env://?timeout=5", {}, v).timeout == 5s);
  CHECK_FALSE(rc::plan_rendezvous("env://", {}, v).timeout.has_value());
}

TEST_CASE("what the caller gives is judged like the rest, before anything happens") {
  for (auto const& [rank, size] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 0}, {-1, 2}, {2, 2}, {1, 1}, {0, std::int64_t{1} << 31}}) {
    CAPTURE(rank);
    CAPTURE(size);
    const auto plan = rc::try_plan_rendezvous("tcp://h:1", rendezvous_arguments().rank(rank).world_size(size), {});
    REQUIRE_FALSE(plan.has_value());
    CHECK(plan.code() == rc::errc::invalid);
  }
  check_text(planned("tcp://h:1?world_size=2", rendezvous_arguments().rank(-1), {}), "rank -1 (the caller's) is not in 0..2147483646",
             false);
  check_text(planned("tcp://h:1?rank=0&world_size=2", rendezvous_arguments().timeout(0s), {}), "the timeout (the caller's) is not above 0",
             false);
  check_text(planned("tcp://h:1?rank=1&world_size=2", rendezvous_arguments().listen_fd(5), {}),
             "a descriptor to listen on (5) is given, but this process does not serve: client of rank 0", false);
  check_text(planned("tcp://h:1?rank=0&world_size=2", rendezvous_arguments().run_id("a/b"), {}), "run_id='a/b' cannot be the name of a file", false);
  check_text(planned("tcp://h:1?rank=0&world_size=2", rendezvous_arguments().bind("a b").generation("/").attempt(-1), {}), "3 problems",
             false);
  CHECK_THROWS_AS(static_cast<void>(rc::plan_rendezvous("x", {}, {})), rc::error);
}

TEST_CASE("a launcher's descriptor and store are for its own address") {
  const variables v = vars("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1 ROLLCALL_LISTEN_FD=3 TORCHELASTIC_USE_AGENT_STORE=False");
  CHECK(*rc::plan_rendezvous("env://", {}, v).listen_fd == 3);
  CHECK(*rc::plan_rendezvous("tcp://h:1", {}, v).listen_fd == 3);
  CHECK_FALSE(rc::plan_rendezvous("tcp://h:2", {}, v).listen_fd.has_value());
  CHECK_FALSE(rc::plan_rendezvous("env://?rank=1", {}, v).listen_fd.has_value());
  CHECK(*rc::plan_rendezvous("tcp://h:2", rendezvous_arguments().listen_fd(9), v).listen_fd == 9);

  variables agent = v;
  agent.set("TORCHELASTIC_USE_AGENT_STORE", "True");
  CHECK(rc::plan_rendezvous("env://", {}, agent).role == "client of the launcher's store (TORCHELASTIC_USE_AGENT_STORE)");
  check_text(rc::plan_rendezvous("tcp://h:2", {}, agent).role, "server, as rank 0; the launcher's store", false);
}

TEST_CASE("the run of a server is the caller's, the URL's, or that of the launcher that numbers the ranks") {
  const auto run = [](char const* url, char const* list) {
    return rc::plan_rendezvous(url, {}, vars(std::string("MASTER_ADDR=h MASTER_PORT=1 ") + list)).run_id.value_or("-");
  };
  CHECK(run("tcp://h:1?run_id=u&rank=0&world_size=2", "TORCHELASTIC_RUN_ID=t") == "u");
  CHECK(run("env://", "RANK=0 WORLD_SIZE=2 TORCHELASTIC_RUN_ID=t") == "t");
  CHECK(run("tcp://h:1", "RANK=0 WORLD_SIZE=2 TORCHELASTIC_RUN_ID=t") == "t");
  // Ranks of several launchers' jobs may meet in a job of their own.
  CHECK(run("tcp://h:1?rank=0&world_size=2", "RANK=0 WORLD_SIZE=2 TORCHELASTIC_RUN_ID=t") == "-");
  CHECK(run("env://", "RANK=0 WORLD_SIZE=2 TORCHELASTIC_RUN_ID=none") == "-");
  CHECK(run("env://", "RANK=0 WORLD_SIZE=2 TORCHELASTIC_RUN_ID=a/b") == "-");
  // A step for each rank is a usual script; only Slurm's own numbers go with its steps.
  CHECK(run("env://", "RANK=0 WORLD_SIZE=2 SLURM_JOB_ID=4 SLURM_STEP_ID=1") == "-");
  CHECK(run("auto://", "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_ID=4 SLURM_STEP_ID=1") == "4.1");
  CHECK(rc::rendezvous_arguments().run_id("a").run_id() == "a");
}

TEST_CASE("what is wrong with a rank's place on its node warns where nothing else is wrong") {
  const rc::rendezvous_plan p = rc::plan_rendezvous("env://", {}, vars("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1 LOCAL_RANK= GROUP_RANK=x"));
  CHECK(p.warnings == std::vector<std::string>{"LOCAL_RANK is empty; it is not used", "GROUP_RANK='x' is not a whole number; it is not used"});
}

TEST_CASE("a plan names the launcher whose word it takes, and none where it takes none") {
  const auto source = [](char const* url, char const* list) { return rc::plan_rendezvous(url, {}, vars(list)).source; };
  CHECK(source("file:///x?rank=0&world_size=2", "") == launcher::none);
  CHECK(source("file:///x?rank=0&world_size=2", "RANK=1 WORLD_SIZE=2") == launcher::none);
  CHECK(source("file:///x", "RANK=0 WORLD_SIZE=2") == launcher::torch);
  CHECK(source("env://?rank=0&world_size=2", "MASTER_ADDR=h MASTER_PORT=1") == launcher::torch);
  CHECK(rc::plan_rendezvous("file:///x?rank=0&world_size=2", {}, {}).describe().find("launcher") == std::string::npos);
}

TEST_CASE("the run of a file is the caller's, the URL's, or the launcher's") {
  const auto run = [](char const* url, rendezvous_arguments const& a, char const* list) {
    return rc::plan_rendezvous(url, a, vars(std::string("RANK=0 WORLD_SIZE=1 ") + list)).run_id.value_or("-");
  };
  CHECK(run("file:///x?run_id=u", rendezvous_arguments().run_id("a"), "TORCHELASTIC_RUN_ID=t") == "a");
  CHECK(run("file:///x?run_id=u", {}, "TORCHELASTIC_RUN_ID=t") == "u");
  CHECK(run("file:///x", {}, "TORCHELASTIC_RUN_ID=t SLURM_JOB_ID=4") == "t");
  CHECK(run("file:///x", {}, "TORCHELASTIC_RUN_ID=none SLURM_JOB_ID=4 SLURM_STEP_ID=1") == "4.1");
  CHECK(run("file:///x", {}, "TORCHELASTIC_RUN_ID=none") == "-");
}

TEST_CASE("an address that cannot be rank 0's is warned of") {
  const auto warnings = [](char const* url, char const* list) { return joined(rc::plan_rendezvous(url, {}, vars(list)).warnings, "; "); };
  char const* const second =
      "RANK=2 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 GROUP_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1";
  char const* const first = "RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 MASTER_ADDR=localhost MASTER_PORT=1";
  check_text(warnings("env://", second),
             "127.0.0.1 (MASTER_ADDR) is this node itself, number 1 (GROUP_RANK), and rank 0 is on node 0: unless both are one machine, give its address", false);
  check_text(warnings("env://", first), "rank 0 serves at localhost (MASTER_ADDR), where only its own node reaches it", false);
  check_text(warnings("env://0.0.0.0", first), "0.0.0.0 (the URL) is no address to connect to", false);
  CHECK(warnings("env://10.0.0.7", second).empty());
  CHECK(warnings("env://", "RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=1").empty());
  CHECK(warnings("env://?rank=0", second).empty());  // the place is another rank's
}

TEST_CASE("a plan describes itself") {
  const std::string text = rc::plan_rendezvous("env://?timeout=90&use_libuv=1", rendezvous_arguments().world_size(2),
                                               vars("RANK=0 WORLD_SIZE=4 MASTER_ADDR=::1 MASTER_PORT=1"))
                               .describe();
  for (char const* line :
       {"rank              0                         RANK\n", "world_size        2                         the caller\n",
        "host              ::1                       MASTER_ADDR\n", "timeout           90 s                      ?timeout of the URL\n",
        "use_libuv         true                      ?use_libuv of the URL\n", "role              server, as rank 0\n"})
    check_text(text, line, false);
}

}  // namespace
