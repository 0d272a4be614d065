// Function: main_kernel
__kernel __attribute__((reqd_work_group_size(128, 1, 1))) void main_kernel(__global float* restrict bounded_2_ptr, __global float* restrict in0_0_ptr, __global float* restrict in0_1_ptr, __global float* restrict in0_2_ptr, __global float* restrict in0_red_0_ptr, __global float* restrict in1_1_ptr, __global float* restrict in1_2_ptr, __global float* restrict out0_1_ptr) {
  __local float local_float32_ptr[128] __attribute__((aligned(16)));
  if ((convert_int(get_group_id(0))) < 3) {
    float in_thread_in0_red_ptr[1];
    in_thread_in0_red_ptr[0] = 0.000000e+00f;
    for (int k1_0 = 0; k1_0 < 2; ++k1_0) {
      if (((k1_0 * 16) + ((convert_int(get_local_id(0))) >> 3)) < 25) {
        in_thread_in0_red_ptr[0] = (in_thread_in0_red_ptr[0] + in0_0_ptr[((((convert_int(get_group_id(0))) * 200) + (k1_0 * 128)) + (convert_int(get_local_id(0))))]);
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    local_float32_ptr[(convert_int(get_local_id(0)))] = in_thread_in0_red_ptr[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    if ((convert_int(get_local_id(0))) < 64) {
      local_float32_ptr[(convert_int(get_local_id(0)))] = (local_float32_ptr[(convert_int(get_local_id(0)))] + local_float32_ptr[((convert_int(get_local_id(0))) + 64)]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if ((convert_int(get_local_id(0))) < 32) {
      local_float32_ptr[(convert_int(get_local_id(0)))] = (local_float32_ptr[(convert_int(get_local_id(0)))] + local_float32_ptr[((convert_int(get_local_id(0))) + 32)]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if ((convert_int(get_local_id(0))) < 16) {
      local_float32_ptr[(convert_int(get_local_id(0)))] = (local_float32_ptr[(convert_int(get_local_id(0)))] + local_float32_ptr[((convert_int(get_local_id(0))) + 16)]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if ((convert_int(get_local_id(0))) < 8) {
      local_float32_ptr[(convert_int(get_local_id(0)))] = (local_float32_ptr[(convert_int(get_local_id(0)))] + local_float32_ptr[((convert_int(get_local_id(0))) + 8)]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if ((convert_int(get_local_id(0))) < 4) {
      local_float32_ptr[(convert_int(get_local_id(0)))] = (local_float32_ptr[(convert_int(get_local_id(0)))] + local_float32_ptr[((convert_int(get_local_id(0))) + 4)]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if ((convert_int(get_local_id(0))) < 2) {
      local_float32_ptr[(convert_int(get_local_id(0)))] = (local_float32_ptr[(convert_int(get_local_id(0)))] + local_float32_ptr[((convert_int(get_local_id(0))) + 2)]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if ((convert_int(get_local_id(0))) < 1) {
      local_float32_ptr[(convert_int(get_local_id(0)))] = (local_float32_ptr[(convert_int(get_local_id(0)))] + local_float32_ptr[((convert_int(get_local_id(0))) + 1)]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if ((convert_int(get_local_id(0))) == 0) {
      in0_red_0_ptr[(convert_int(get_group_id(0)))] = local_float32_ptr[0];
    }
  } else {
    if ((convert_int(get_group_id(0))) < 4) {
      if ((((convert_int(get_group_id(0))) * 128) + (convert_int(get_local_id(0)))) < 396) {
        int _ptr[1];
        int _ptr_1[1];
        int _ptr_2[1];
        float _ptr_3[16];
        float _ptr_4[4];
        float _ptr_5[4];
        float _ptr_6[4];
        float _ptr_7[4];
        float _ptr_8[4];
        float _ptr_9[4];
        float _ptr_10[4];
        int cse_v2 = ((((convert_int(get_group_id(0))) * 64) + ((convert_int(get_local_id(0))) / 2)) - 192);
        if ((((convert_int(get_group_id(0))) * 64) + ((convert_int(get_local_id(0))) / 2)) < 197) {
          _ptr[0] = 0;
          _ptr_1[0] = ((((convert_int(get_group_id(0))) * 64) + ((convert_int(get_local_id(0))) / 2)) - 192);
          int cse_v1 = (((convert_int(get_local_id(0))) % 2) * 4);
          _ptr_2[0] = min((int)(((convert_int(get_local_id(0))) % 2) * 4), (int)1);
          _ptr_3[0] = 0.000000e+00f;
          _ptr_3[1] = 0.000000e+00f;
          _ptr_3[2] = 0.000000e+00f;
          _ptr_3[3] = 0.000000e+00f;
          _ptr_3[4] = 0.000000e+00f;
          _ptr_3[5] = 0.000000e+00f;
          _ptr_3[6] = 0.000000e+00f;
          _ptr_3[7] = 0.000000e+00f;
          _ptr_3[8] = 0.000000e+00f;
          _ptr_3[9] = 0.000000e+00f;
          _ptr_3[10] = 0.000000e+00f;
          _ptr_3[11] = 0.000000e+00f;
          _ptr_3[12] = 0.000000e+00f;
          _ptr_3[13] = 0.000000e+00f;
          _ptr_3[14] = 0.000000e+00f;
          _ptr_3[15] = 0.000000e+00f;
          for (int v = 0; v < 2; ++v) {
            _ptr_4[0] = in1_1_ptr[((_ptr[0] * 8) + v)];
            _ptr_4[1] = in1_1_ptr[(((_ptr[0] * 8) + v) + 2)];
            _ptr_4[2] = in1_1_ptr[(((_ptr[0] * 8) + v) + 4)];
            _ptr_4[3] = in1_1_ptr[(((_ptr[0] * 8) + v) + 6)];
            vstore4(vload4(0, ((__global float *)in0_1_ptr + (((v * 25) + (_ptr_1[0] * 5)) + _ptr_2[0]))), 0, _ptr_5 + 0);
            _ptr_6[0] = _ptr_5[0];
            _ptr_6[1] = _ptr_5[1];
            _ptr_6[2] = _ptr_5[2];
            _ptr_6[3] = _ptr_5[3];
            vstore4((vload4(0, _ptr_3 + 0) + (vload4(0, _ptr_4 + 0) * ((float4)(_ptr_6[0])))), 0, _ptr_3 + 0);
            vstore4((vload4(0, _ptr_3 + 4) + (vload4(0, _ptr_4 + 0) * ((float4)(_ptr_6[1])))), 0, _ptr_3 + 4);
            vstore4((vload4(0, _ptr_3 + 8) + (vload4(0, _ptr_4 + 0) * ((float4)(_ptr_6[2])))), 0, _ptr_3 + 8);
            vstore4((vload4(0, _ptr_3 + 12) + (vload4(0, _ptr_4 + 0) * ((float4)(_ptr_6[3])))), 0, _ptr_3 + 12);
          }
          _ptr_7[0] = _ptr_3[0];
          _ptr_7[1] = _ptr_3[4];
          _ptr_7[2] = _ptr_3[8];
          _ptr_7[3] = _ptr_3[12];
          if ((((convert_int(get_local_id(0))) % 2) * 4) <= _ptr_2[0]) {
            out0_1_ptr[(((_ptr[0] * 100) + (_ptr_1[0] * 5)) + _ptr_2[0])] = _ptr_7[0];
          }
          if ((((convert_int(get_local_id(0))) % 2) * 4) <= (_ptr_2[0] + 1)) {
            out0_1_ptr[((((_ptr[0] * 100) + (_ptr_1[0] * 5)) + _ptr_2[0]) + 1)] = _ptr_7[1];
          }
          if ((((convert_int(get_local_id(0))) % 2) * 4) <= (_ptr_2[0] + 2)) {
            out0_1_ptr[((((_ptr[0] * 100) + (_ptr_1[0] * 5)) + _ptr_2[0]) + 2)] = _ptr_7[2];
          }
          out0_1_ptr[((((_ptr[0] * 100) + (_ptr_1[0] * 5)) + _ptr_2[0]) + 3)] = _ptr_7[3];
          _ptr_8[0] = _ptr_3[1];
          _ptr_8[1] = _ptr_3[5];
          _ptr_8[2] = _ptr_3[9];
          _ptr_8[3] = _ptr_3[13];
          if ((((convert_int(get_local_id(0))) % 2) * 4) <= _ptr_2[0]) {
            out0_1_ptr[((((_ptr[0] * 100) + (_ptr_1[0] * 5)) + _ptr_2[0]) + 25)] = _ptr_8[0];
          }
          if ((((convert_int(get_local_id(0))) % 2) * 4) <= (_ptr_2[0] + 1)) {
            out0_1_ptr[((((_ptr[0] * 100) + (_ptr_1[0] * 5)) + _ptr_2[0]) + 26)] = _ptr_8[1];
          }
          if ((((convert_int(get_local_id(0))) % 2) * 4) <= (_ptr_2[0] + 2)) {
            out0_1_ptr[((((_ptr[0] * 100) + (_ptr_1[0] * 5)) + _ptr_2[0]) + 27)] = _ptr_8[2];
          }
          out0_1_ptr[((((_ptr[0] * 100) + (_ptr_1[0] * 5)) + _ptr_2[0]) + 28)] = _ptr_8[3];
          _ptr_9[0] = _ptr_3[2];
          _ptr_9[1] = _ptr_3[6];
          _ptr_9[2] = _ptr_3[10];
          _ptr_9[3] = _ptr_3[14];
          if ((((convert_int(get_local_id(0))) % 2) * 4) <= _ptr_2[0]) {
            out0_1_ptr[((((_ptr[0] * 100) + (_ptr_1[0] * 5)) + _ptr_2[0]) + 50)] = _ptr_9[0];
          }
          if ((((convert_int(get_local_id(0))) % 2) * 4) <= (_ptr_2[0] + 1)) {
            out0_1_ptr[((((_ptr[0] * 100) + (_ptr_1[0] * 5)) + _ptr_2[0]) + 51)] = _ptr_9[1];
          }
          if ((((convert_int(get_local_id(0))) % 2) * 4) <= (_ptr_2[0] + 2)) {
            out0_1_ptr[((((_ptr[0] * 100) + (_ptr_1[0] * 5)) + _ptr_2[0]) + 52)] = _ptr_9[2];
          }
          out0_1_ptr[((((_ptr[0] * 100) + (_ptr_1[0] * 5)) + _ptr_2[0]) + 53)] = _ptr_9[3];
          _ptr_10[0] = _ptr_3[3];
          _ptr_10[1] = _ptr_3[7];
          _ptr_10[2] = _ptr_3[11];
          _ptr_10[3] = _ptr_3[15];
          if ((((convert_int(get_local_id(0))) % 2) * 4) <= _ptr_2[0]) {
            out0_1_ptr[((((_ptr[0] * 100) + (_ptr_1[0] * 5)) + _ptr_2[0]) + 75)] = _ptr_10[0];
          }
          if ((((convert_int(get_local_id(0))) % 2) * 4) <= (_ptr_2[0] + 1)) {
            out0_1_ptr[((((_ptr[0] * 100) + (_ptr_1[0] * 5)) + _ptr_2[0]) + 76)] = _ptr_10[1];
          }
          if ((((convert_int(get_local_id(0))) % 2) * 4) <= (_ptr_2[0] + 2)) {
            out0_1_ptr[((((_ptr[0] * 100) + (_ptr_1[0] * 5)) + _ptr_2[0]) + 77)] = _ptr_10[2];
          }
          out0_1_ptr[((((_ptr[0] * 100) + (_ptr_1[0] * 5)) + _ptr_2[0]) + 78)] = _ptr_10[3];
        }
      }
    } else {
      if (((((convert_int(get_group_id(0))) * 32) + (((convert_int(get_local_id(0))) / 64) * 16)) + (((convert_int(get_local_id(0))) % 64) >> 2)) < 191) {
        int cse_v1_1 = ((((convert_int(get_group_id(0))) * 128) + (convert_int(get_local_id(0)))) - 512);
        bounded_2_ptr[((((convert_int(get_group_id(0))) * 128) + (convert_int(get_local_id(0)))) - 512)] = (tanh((in0_2_ptr[((((convert_int(get_group_id(0))) * 128) + (convert_int(get_local_id(0)))) - 512)] + in1_2_ptr[(((((convert_int(get_group_id(0))) * 128) + (convert_int(get_local_id(0)))) + 1) % 9)])) * 5.000000e-01f);
      }
    }
  }
}

