"""What runs of common stacks print that go well, without the messages of doctor_noise.txt. Each is shortened.

Above each: where its wording was read, and when. Several have words in them that sound like failures.
"""

# karpathy/nanoGPT, train.py (2026-11-27)
NANOGPT = """\
tokens per iteration will be: 491,520
found vocab_size = 65 (inside data/shakespeare_char/meta.pkl)
Initializing a new model from scratch
number of parameters: 123.59M
num decayed parameter tensors: 50, with 124,354,560 parameters
using fused AdamW: True
compiling the model... (takes a ~minute)
step 0: train loss 10.9886, val loss 10.9898
iter 0: loss 10.9895, time 25732.20ms, mfu -100.00%
iter 10: loss 9.5612, time 250.84ms, mfu 41.21%
saving checkpoint to out
"""
# Lightning-AI/pytorch-lightning: trainer/setup.py, strategies, loops (2026-11-27)
LIGHTNING = """\
Seed set to 42
GPU available: True (cuda), used: True
TPU available: False, using: 0 TPU cores
Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4
----------------------------------------------------------------------------------------------------
distributed_backend=nccl
All distributed processes registered. Starting with 4 processes
----------------------------------------------------------------------------------------------------
LOCAL_RANK: 0 - CUDA_VISIBLE_DEVICES: [0,1]
Epoch 0: 100%|##########| 100/100 [00:20<00:00,  4.99it/s, v_num=0]
`Trainer.fit` stopped: `max_epochs=1` reached.
"""
# huggingface/transformers, trainer.py (2026-11-27)
TRAINER = """\
***** Running training *****
  Num examples = 67,349
  Num Epochs = 3
  Instantaneous batch size per device = 8
  Total train batch size (w. parallel, distributed & accumulation) = 32
{'loss': 0.4512, 'grad_norm': 2.31, 'learning_rate': 4.7e-05, 'epoch': 0.06}
{'eval_loss': 0.3021, 'eval_accuracy': 0.88, 'eval_runtime': 3.2, 'epoch': 1.0}
{'train_runtime': 812.2, 'train_samples_per_second': 248.7, 'train_loss': 0.21, 'epoch': 3.0}
Training completed. Do not forget to share your model on huggingface.co/models =)
"""
# deepspeedai/DeepSpeed #4968 and its engine (2026-11-27)
DEEPSPEED = """\
[2024-01-17 19:02:00,848] [INFO] [real_accelerator.py:158:get_accelerator] Setting ds_accelerator to cuda (auto detect)
[2024-01-17 19:02:44,101] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[0.0001], mom=[[0.9, 0.999]]
[2024-01-17 19:03:02,900] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. \
Attempted loss scale: 4294967296, reducing to 2147483648
[2024-01-17 19:03:44,101] [INFO] [logging.py:96:log_dist] [Rank 0] step=20, skipped=1, lr=[0.0001], mom=[[0.9, 0.999]]
"""
# NVIDIA/Megatron-LM, training.py (2026-11-27)
MEGATRON = """\
using world size: 4, data-parallel size: 2, context-parallel size: 1, tensor-model-parallel size: 2
> initializing torch distributed ...
> compiling dataset index builder ...
>>> done with dataset index builder. Compilation time: 0.062 seconds
 iteration    100/  500000 | consumed samples:        25600 | elapsed time per iteration (ms): 812.3 | loss scale: 1.0 \
| grad norm: 1.012 | number of skipped iterations:   0 | number of nan iterations:   0 |
saving checkpoint at iteration     100 to /data/checkpoints in torch_dist format
[exiting program at iteration 100]
"""
# pytorch/torchtitan: distributed/utils.py, and runs of its users (2026-11-27)
TORCHTITAN = """\
[titan] 2026-11-27 09:12:01,912 - root - WARNING - ENV[TORCH_NCCL_ASYNC_ERROR_HANDLING] = 1 will be overridden to 3 \
based on job config
[titan] 2026-11-27 09:12:09,100 - root - INFO - step:  1  loss:  8.1661  grad_norm:  3.6855  memory:  2.47GiB(3.12%)
[titan] 2026-11-27 09:12:09,101 - root - INFO - Synchronizing and adjusting timeout for all ProcessGroups to 0:01:40
[titan] 2026-11-27 09:12:12,000 - root - WARNING - Dataset c4_test is being re-looped
[titan] 2026-11-27 09:12:19,100 - root - INFO - step: 10  loss:  4.8010  grad_norm:  2.1345  memory:  2.47GiB(3.12%)
"""
# keras and horovod/horovod examples (2026-11-27)
HOROVOD = """\
Epoch 1/2
500/500 [==============================] - 5s 10ms/step - loss: 0.3501 - accuracy: 0.8930
Epoch 2/2
500/500 [==============================] - 4s 9ms/step - loss: 0.1012 - accuracy: 0.9701
Test loss: 0.0591
Mean squared error: 0.0031, 0 samples killed by the filter
"""
# facebookresearch/hydra's job_logging (2026-11-27)
HYDRA = """\
[2026-11-27 10:00:00,301][__main__][INFO] - Instantiating datamodule <src.data.MNISTDataModule>
[2026-11-27 10:00:02,117][__main__][WARNING] - No checkpoint found at last.ckpt, starting from scratch
[2026-11-27 10:00:31,907][src.utils][ERROR] - could not log hyperparameters: logger not found, skipping
[2026-11-27 10:09:00,001][__main__][INFO] - Best ckpt path: logs/train/runs/epoch_003.ckpt
"""
# huggingface/accelerate examples (2026-11-27)
ACCELERATE = """\
11/27/2026 10:00:00 - INFO - __main__ - Distributed environment: MULTI_GPU  Backend: nccl
Num processes: 4
Process index: 0
Device: cuda:0
Mixed precision type: bf16
epoch 0: {'accuracy': 0.8357, 'f1': 0.8845}
epoch 1: {'accuracy': 0.8627, 'f1': 0.9034}
"""
# NVIDIA/nccl-tests #188 and its README (2026-11-27)
NCCL_TESTS = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validate: 1
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
           8             2     float     sum      -1    21.31    0.00    0.00      0    20.97    0.00    0.00      0
   134217728      33554432     float     sum      -1   1540.2   87.14  152.50      0   1538.9   87.22  152.63      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 41.6031
"""
# vllm-project/vllm #10512 (2026-11-27)
VLLM = """\
INFO 11-21 04:27:48 llm_engine.py:249] Initializing an LLM engine (v0.6.4.post1)
WARNING 11-21 04:27:49 multiproc_gpu_executor.py:56] Reducing Torch parallelism from 24 threads to 1 to avoid unnecessary CPU contention.
INFO 11-21 04:28:10 worker.py:123] Memory profiling results: total_gpu_memory=79.11GiB
INFO 11-21 04:28:40 model_runner.py:1400] Graph capturing finished in 21 secs.
"""  # noqa: E501
# A loop of one's own: counts of what went wrong, and a retry that helped.
OWN = """\
step 100/200  loss 2.31  killed 0  out of memory 0  timeout 600 s  errors 0
skipping shard 17: [Errno 2] No such file or directory: '/data/shard-17.tar'
attempt 1 of 3 failed: Connection reset by peer, trying again in 2 s
attempt 2 of 3 went well
error rate 0.0312, 0 of 4096 samples failed
early stopping: no improvement for 5 epochs, exit
"""
# torch/optim's users: an exception that a program catches and tells of (logging.exception).
CAUGHT = """\
2026-11-27 10:00:00,301 ERROR data: cannot decode image 4711.jpg, using the next one
Traceback (most recent call last):
  File "/home/user/project/data.py", line 31, in load
    image = decode(path)
  File "/home/user/project/data.py", line 12, in decode
    raise ValueError(f"{path}: not a JPEG")
ValueError: 4711.jpg: not a JPEG
2026-11-27 10:00:02,301 INFO train: step 10, loss 2.31
2026-11-27 10:09:02,301 INFO train: done
"""
# The end of a good run under torchrun: pytorch/pytorch #69520 (2026-11-22).
AT_THE_END = """\
step 200/200  loss 0.31
[W1121 20:40:54.356173506 TCPStore.cpp:138] [c10d] recvValueWithTimeout failed on SocketImpl(fd=4, \
addr=[::ffff:10.77.0.12]:37344, remote=[::ffff:10.77.0.11]:23101): Connection reset by peer
Exception raised from recvBytes at /__w/pytorch/torch/csrc/distributed/c10d/Utils.hpp:784 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x9d (0x7fbdfd379b8d in /x/libc10.so)
"""

GOOD_RUNS = {
    "nanogpt": NANOGPT,
    "lightning": LIGHTNING,
    "trainer": TRAINER,
    "deepspeed": DEEPSPEED,
    "megatron": MEGATRON,
    "torchtitan": TORCHTITAN,
    "horovod": HOROVOD,
    "hydra": HYDRA,
    "accelerate": ACCELERATE,
    "nccl-tests": NCCL_TESTS,
    "vllm": VLLM,
    "own": OWN,
    "caught": CAUGHT,
    "at the end": AT_THE_END,
}
